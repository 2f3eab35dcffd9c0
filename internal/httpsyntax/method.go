package httpsyntax

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// standard are the methods of RFC 9110 section 9.3 and RFC 5789 that make a request.
var standard = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

// never are the methods of RFC 9110 that no task may have.
var never = map[string]string{
	"CONNECT": "CONNECT opens a tunnel and is not a request",
	"TRACE":   "TRACE has the answer give the request back, credentials included, and no API needs it",
}

// Methods is a set of methods that tasks may have.
type Methods struct{ more []string }

// ParseMethods returns the standard methods and those named, such as "PROPFIND". The error
// joins one for each name that is not a method's, or is one that no task may have.
func ParseMethods(more []string) (Methods, error) {
	var faults []error
	for _, name := range more {
		if reason := MethodFault(name); reason != "" {
			faults = append(faults, fmt.Errorf("method %q: %s", clip(name), reason))
		}
	}
	return Methods{more}, errors.Join(faults...)
}

// MethodFault returns why no task may have the method, whatever methods are allowed; "" if one may.
func MethodFault(method string) string {
	if reason := never[strings.ToUpper(method)]; reason != "" {
		return reason
	}
	if !Token(method) {
		return "not an HTTP method; write a word such as GET or POST"
	}
	return ""
}

// Fault returns why a task may not have the method, "" if it may. Methods are compared with
// case, as RFC 9110 has them.
func (m Methods) Fault(method string) string {
	if reason := MethodFault(method); reason != "" {
		return reason
	}
	if slices.Contains(standard, method) || slices.Contains(m.more, method) {
		return ""
	}
	if upper := strings.ToUpper(method); upper != method && slices.Contains(standard, upper) {
		return "a method is written in upper case: " + upper
	}
	return "not one of " + strings.Join(slices.Concat(standard, m.more), ", ")
}

// Token reports whether s is a token of RFC 9110 section 5.6.2: a method or a header's name.
func Token(s string) bool {
	for i := range len(s) {
		if c := s[i]; !isAlnum(c) && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

func isAlnum(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func clip(s string) string {
	const most = 60
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
