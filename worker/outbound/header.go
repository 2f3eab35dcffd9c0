package outbound

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/headway-go/headway/queue/httpsyntax"
)

// connectionHeaders are headers about the connection, which the task does not own, with the reason in
// a task's error. Two of them (Content-Length, Transfer-Encoding) can make one request look like two.
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

// validHeaderValue reports whether s has no control character except tabs.
func validHeaderValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// validHostHeader reports whether s is HOST or HOST:PORT.
func validHostHeader(s string) bool {
	host, _, err := splitHostPort(s)
	if err != nil {
		return false
	}
	ascii, fault := httpsyntax.Host(host)
	return fault == "" && ascii == host
}

// splitHostPort splits HOST, HOST:PORT, [IPv6] and [IPv6]:PORT. A missing port is 0.
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
