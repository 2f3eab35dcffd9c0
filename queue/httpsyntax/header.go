package httpsyntax

import (
	"net/http"
	"strings"
	"unicode/utf8"
)

// ofConnection are headers about the connection, which a task does not own. Two of them
// (Content-Length, Transfer-Encoding) can make one request look like two.
var ofConnection = map[string]string{
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

// HeaderFault returns why a request may not have a header, "" if it may. name is a Token.
func HeaderFault(name, value string) string {
	if reason := ofConnection[http.CanonicalHeaderKey(name)]; reason != "" {
		return reason
	}
	if !ValidHeaderValue(value) {
		return "has a control character, such as a line end, in its value, or is not UTF-8"
	}
	return ""
}

// ValidHeaderValue reports whether s is UTF-8 without control characters except tabs.
func ValidHeaderValue(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}
