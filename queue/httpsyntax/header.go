package httpsyntax

import (
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
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
	control := func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }
	if !utf8.ValidString(value) || strings.ContainsFunc(value, control) {
		return "has a control character, such as a line end, in its value, or is not UTF-8"
	}
	return ""
}

// Fault is why a request may not have a header. Name is empty where it is no Token: it may be a whole
// pasted "Authorization: Bearer …".
type Fault struct{ Name, Reason string }

// HeaderFaults returns the faults of a request's headers, in the order of their names.
func HeaderFaults(headers map[string]string) (faults []Fault) {
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		lower, reason := strings.ToLower(name), HeaderFault(name, headers[name])
		switch {
		case !Token(name):
			name, reason = "", fmt.Sprintf("a name of %d bytes is no header name", len(name))
		case reason == "" && seen[lower]:
			reason = "is given twice, written differently"
		}
		if seen[lower] = true; reason != "" {
			faults = append(faults, Fault{name, reason})
		}
	}
	return faults
}

// Template matches what a header's value has for the key of the pool's member that its task is granted, and "{{" where that is misspelt.
var Template = regexp.MustCompile(`\{\{(?: *secret +\.member *\}\})?`)

// TemplateFault returns what is wrong with the templates in a header's value, "" for nothing.
func TemplateFault(value string) string {
	if slices.Contains(Template.FindAllString(value, -1), "{{") {
		return `has a "{{" that begins no template; write {{secret .member}} for the key of the pool's member`
	}
	return ""
}
