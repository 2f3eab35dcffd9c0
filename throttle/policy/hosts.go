package policy

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// hostPattern matches the hosts that may correct a provider's limits.
type hostPattern struct {
	name string // in lower case, or an address in its usual form
	port string // "" for any
	sub  bool   // matches any name below this one, but not the name itself
}

// parseHostPattern parses HOST, HOST:PORT or *.HOST. fault is empty if the text is valid.
func parseHostPattern(text string) (p hostPattern, fault string) {
	switch {
	case strings.Contains(text, "/"):
		return p, "is a URL or a path; write its host alone, such as api.example.com"
	case strings.IndexFunc(text, func(r rune) bool { return r > 0x7e }) >= 0:
		return p, "is not ASCII; write the form that begins with xn--"
	}
	p.name = text
	if _, err := netip.ParseAddr(text); err != nil && strings.Contains(text, ":") {
		if p.name, p.port, err = net.SplitHostPort(text); err != nil {
			return p, "has no port behind its last colon; write HOST or HOST:PORT"
		}
		if n, err := strconv.ParseUint(p.port, 10, 16); err != nil || n == 0 || p.port[0] == '0' {
			return p, "has a port that is no number from 1 to 65535"
		}
	}
	p.name, p.sub = strings.CutPrefix(p.name, "*.")
	name, isName := hostName(p.name)
	if !isName && (p.sub || net.ParseIP(name) == nil) {
		return p, "is no host; write a name such as api.example.com or *.example.com, or an address"
	}
	p.name = name
	return p, ""
}

// hostName returns a host in the form in which it is compared, and whether it is a name rather than an address: letters, digits,
// '-' and '_'.
func hostName(host string) (name string, isName bool) {
	if ip, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return ip.Unmap().String(), false
	}
	name = strings.ToLower(strings.TrimSuffix(host, "."))
	for label := range strings.SplitSeq(name, ".") {
		outside := func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
		}
		if label == "" || len(label) > 63 || strings.ContainsFunc(label, outside) {
			return name, false
		}
	}
	return name, len(name) <= 253
}

func (p hostPattern) matches(name, port string) bool {
	if p.port != "" && p.port != port {
		return false
	}
	return name == p.name && !p.sub || p.sub && strings.HasSuffix(name, "."+p.name)
}

// Hosts returns the hosts whose answers count for a scope, as in limits.yaml: those of the lowest level of its path that lists
// any. If no level does, the result is empty, and the answers of all hosts count.
func (p *Policy) Hosts(s Scope) []string {
	var hosts []string
	p.settings(s, func(t *tree) bool { return len(t.Hosts) > 0 }, func(_ Scope, t *tree) { hosts = t.Hosts })
	return slices.Clone(hosts)
}

// Hears reports whether an answer of a host to a call of a scope counts: its Hosts are not listed, or match it, or it is not known, "".
func (p *Policy) Hears(s Scope, host string) bool {
	hosts := p.Hosts(s)
	return len(hosts) == 0 || host == "" || HostMatches(hosts, host)
}

// HostMatches reports whether one of hosts, in the form of Hosts, matches host, which is HOST or HOST:PORT.
func HostMatches(hosts []string, host string) bool {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port = host, ""
	}
	name, _ = hostName(name)
	return slices.ContainsFunc(hosts, func(h string) bool {
		pattern, fault := parseHostPattern(h)
		return fault == "" && pattern.matches(name, port)
	})
}
