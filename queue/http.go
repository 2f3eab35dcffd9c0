package queue

import (
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/queue/httpsyntax"
)

// HTTP is one outbound request. Its JSON form is the payload of a task of type "http".
type HTTP struct {
	// Method is the request's method: GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS, or one that both
	// Client and workers are configured to allow. Defaults to "GET".
	Method string `json:"method,omitempty"`
	// URL is the absolute URL, with scheme http or https. Required.
	URL string `json:"url"`
	// Headers are the request's headers, one value each. Defaults to none.
	Headers map[string]string `json:"headers,omitempty"`
	// Body is the request's body, valid UTF-8. Defaults to empty.
	Body string `json:"body,omitempty"`
}

// validate adds the faults of a request; a nil request has none.
func (h *HTTP) validate(found faults) faults {
	if h == nil {
		return found
	}
	if reason := httpsyntax.MethodFault(h.Method); reason != "" && h.Method != "" && !found.has("http.method") {
		found.add("http.method", "%q: %s", diag.Clip(h.Method), reason)
	}
	if _, reason := httpsyntax.ParseURL(h.URL); reason != "" && !found.has("http.url") {
		found.add("http.url", "%s", reason)
	}
	if !utf8.ValidString(h.Body) {
		found.add("http.body", "not valid UTF-8; a binary body cannot be carried as text")
	}
	for _, fault := range httpsyntax.HeaderFaults(h.Headers) {
		if fault.Name != "" {
			fault.Reason = fmt.Sprintf("%q %s", diag.Clip(fault.Name), fault.Reason)
		}
		found.add("http.headers", "%s", fault.Reason)
	}
	for _, name := range slices.Sorted(maps.Keys(h.Headers)) {
		if reason := httpsyntax.TemplateFault(h.Headers[name]); reason != "" && httpsyntax.Token(name) {
			found.add("http.headers", "%q %s", diag.Clip(name), reason)
		}
	}
	return found
}

// CheckMethod returns an *InvalidError if the task is of type "http" and workers would refuse its method, and nil otherwise.
// Workers accept the methods of RFC 9110, PATCH, and those in allowed, which workers must be configured to allow too. They refuse
// CONNECT and TRACE even if allowed lists them.
func (t Task) CheckMethod(allowed []string) error { return t.checkMethod(allowed, nil).err() }

func (t Task) checkMethod(allowed []string, found faults) faults {
	if t.HTTP == nil || t.HTTP.Method == "" || found.has("http.method") {
		return found
	}
	if reason := httpsyntax.Methods(allowed).Fault(t.HTTP.Method); reason != "" {
		found.add("http.method", "%q: %s", diag.Clip(t.HTTP.Method), reason)
	}
	return found
}
