package outbound

import (
	"net/netip"
	"strconv"
	"strings"
)

// Headers that speak about the connection, which is not the task's, with the
// reason a task is told. Two of them (Content-Length, Transfer-Encoding) are how
// one request is made to look like two.
var connectionHeaders = map[string]string{
	"Connection":          "belongs to the connection, which tasks share; leave it out",
	"Content-Length":      "is set from the body; leave it out",
	"Expect":              "is not supported, the body is sent at once; leave it out",
	"Http2-Settings":      "belongs to the connection, which tasks share; leave it out",
	"Keep-Alive":          "belongs to the connection, which tasks share; leave it out",
	"Proxy-Authenticate":  "is for a proxy, and none is used; leave it out",
	"Proxy-Authorization": "is for a proxy, and none is used; leave it out",
	"Proxy-Connection":    "belongs to the connection, which tasks share; leave it out",
	"Te":                  "belongs to the connection, which tasks share; leave it out",
	"Trailer":             "is not supported, a body has no trailers; leave it out",
	"Transfer-Encoding":   "is set from the body; leave it out",
	"Upgrade":             "belongs to the connection, which tasks share; leave it out",
}

// validToken reports whether s is a token of RFC 9110: a method or a header name.
func validToken(s string) bool {
	for i := range len(s) {
		if c := s[i]; !isAlnum(c) && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

// validHeaderValue reports whether s has no control character but the tab.
func validHeaderValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// validURLHost is for what net/url lets through: percent escapes it decoded.
// Letters beyond ASCII stay, they become punycode later.
func validURLHost(s string) bool {
	if addr, err := netip.ParseAddr(s); err == nil {
		return addr.IsValid()
	}
	for i := range len(s) {
		if c := s[i]; c < 0x80 && !isAlnum(c) && c != '-' && c != '.' && c != '_' {
			return false
		}
	}
	return strings.Trim(s, ".") != ""
}

// oddAddress reports whether s ends in a number and is no address as netip reads
// it: 2130706433, 0x7f000001, 0177.0.0.1 and 127.1 are loopback to some systems'
// resolvers and unknown names to others.
func oddAddress(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return false
	}
	s = strings.ToLower(strings.TrimSuffix(s, "."))
	last := s[strings.LastIndexByte(s, '.')+1:]
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return isDigits(last)
}

// validHostHeader reports whether s is HOST or HOST:PORT.
func validHostHeader(s string) bool {
	host, _, err := splitHostPort(s)
	if err != nil {
		return false
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.IsValid()
	}
	return validName(host)
}

// validName reports whether s looks like a host name in ASCII.
func validName(s string) bool {
	s = strings.TrimSuffix(s, ".")
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" {
			return false
		}
		for i := range len(label) {
			if c := label[i]; !isAlnum(c) && c != '-' && c != '_' {
				return false
			}
		}
	}
	return true
}

// splitHostPort splits HOST, HOST:PORT, [IPv6] and [IPv6]:PORT. A port that is
// not given is 0.
func splitHostPort(s string) (host string, port int, err error) {
	rest := ""
	if inner, ok := strings.CutPrefix(s, "["); ok {
		host, rest, ok = strings.Cut(inner, "]")
		addr, err := netip.ParseAddr(host)
		if !ok || err != nil || !addr.Is6() {
			return "", 0, errBrackets
		}
	} else {
		if strings.Count(s, ":") > 1 {
			return "", 0, errBareIPv6
		}
		if i := strings.IndexByte(s, ':'); i >= 0 {
			s, rest = s[:i], s[i:]
		}
		host = s
	}
	if rest == "" {
		return host, 0, nil
	}
	digits, ok := strings.CutPrefix(rest, ":")
	n, err := strconv.ParseUint(digits, 10, 16)
	if !ok || err != nil || n == 0 {
		return "", 0, errPort
	}
	return host, int(n), nil
}

func isAlnum(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}
