package upstream

import (
	"net"
	"net/url"
	"strings"
)

// HostOf returns the host and port that a request to a URL goes to, HOST:PORT, as in Hint.Host.
func HostOf(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[strings.ToLower(u.Scheme)]
	}
	return net.JoinHostPort(u.Hostname(), port)
}
