package outbound

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/headway-go/headway/internal/httpsyntax"
)

var (
	errBrackets = errors.New("what stands in brackets must be an IPv6 address, such as [::1] or [::1]:8080")
	errBareIPv6 = errors.New("more than one colon; write an IPv6 address in brackets, such as [::1]")
	errPort     = errors.New("the port must be a number between 1 and 65535")
)

// allowed is the hosts that may be dialled whatever their address. Port 0 is any.
type allowed map[hostPort]bool

type hostPort struct {
	host string // as normalHost leaves it
	port int
}

// parseAllowed reads -allow-host entries. Its error lists every bad one.
func parseAllowed(entries []string) (allowed, error) {
	a := make(allowed, len(entries))
	var faults []error
	for _, entry := range entries {
		hp, err := parseAllowedHost(entry)
		if err != nil {
			faults = append(faults, fmt.Errorf("outbound: allow host %q: %w", entry, err))
			continue
		}
		a[hp] = true
	}
	return a, errors.Join(faults...)
}

func parseAllowedHost(entry string) (hostPort, error) {
	switch {
	case entry == "":
		return hostPort{}, errors.New("empty; write HOST or HOST:PORT")
	case strings.Contains(entry, "/"):
		return hostPort{}, errors.New("write HOST or HOST:PORT, not a URL or a range")
	case strings.Contains(entry, "*"):
		return hostPort{}, errors.New("has no wildcards; name each host")
	}
	host, port, err := splitHostPort(entry)
	if err != nil {
		return hostPort{}, err
	}
	ascii, fault := httpsyntax.Host(host)
	if fault != "" {
		return hostPort{}, errors.New(fault)
	}
	return hostPort{normalHost(ascii), port}, nil
}

// has reports whether addr, as the transport dials it, was named.
func (a allowed) has(addr string) bool {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return false
	}
	host = normalHost(host)
	return a[hostPort{host, port}] || a[hostPort{host, 0}]
}

// normalHost makes two spellings of one name equal: case, trailing dot, and the
// ways to write one IPv6 address. It never turns a name into an address.
func normalHost(host string) string {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.String()
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
