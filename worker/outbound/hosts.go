package outbound

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/headway-go/headway/queue/httpsyntax"
)

// hosts are the names and addresses of a list. Port 0 is any.
type hosts map[hostPort]bool

type hostPort struct {
	host string // as normalHost returns it
	port int
}

// parseHosts parses the entries of a list that errors call what. Its error lists every bad one.
func parseHosts(what string, entries []string) (hosts, error) {
	h := make(hosts, len(entries))
	var faults []error
	for _, entry := range entries {
		hp, err := parseHost(entry)
		if err != nil {
			faults = append(faults, fmt.Errorf("outbound: %s %q: %w", what, entry, err))
			continue
		}
		h[hp] = true
	}
	return h, errors.Join(faults...)
}

func parseHost(entry string) (hostPort, error) {
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

// has reports whether a host is listed, with this port or with any.
func (h hosts) has(host string, port int) bool {
	host = normalHost(host)
	return h[hostPort{host, port}] || h[hostPort{host, 0}]
}

// normalHost makes spellings of one name equal: case, trailing dot, and the forms of one IPv6 address.
// It never turns a name into an address.
func normalHost(host string) string {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.String()
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// validHostHeader reports whether s is HOST or HOST:PORT.
func validHostHeader(s string) bool {
	host, _, err := splitHostPort(s)
	ascii, fault := httpsyntax.Host(host)
	return err == nil && fault == "" && ascii == host
}

// splitHostPort splits HOST, HOST:PORT, [IPv6] and [IPv6]:PORT. A missing port is 0.
func splitHostPort(s string) (host string, port int, err error) {
	if i := strings.LastIndexByte(s, ':'); i > strings.LastIndexByte(s, ']') {
		n, err := strconv.ParseUint(s[i+1:], 10, 16)
		if err != nil || n == 0 {
			return "", 0, errors.New("the port must be a number between 1 and 65535")
		}
		s, port = s[:i], int(n)
	}
	inner, bracketed := strings.CutPrefix(s, "[")
	if !bracketed && strings.Contains(s, ":") {
		return "", 0, errors.New("more than one colon; write an IPv6 address in brackets, such as [::1]")
	} else if !bracketed {
		return s, port, nil
	}
	host, closed := strings.CutSuffix(inner, "]")
	if addr, err := netip.ParseAddr(host); !closed || err != nil || !addr.Is6() {
		return "", 0, errors.New("what stands in brackets must be an IPv6 address, such as [::1] or [::1]:8080")
	}
	return host, port, nil
}
