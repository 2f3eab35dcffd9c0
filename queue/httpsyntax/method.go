package httpsyntax

import (
	"slices"
	"strings"
)

// standard are the methods of RFC 9110 section 9.3 and RFC 5789 that make a request.
var standard = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

// StandardMethods returns the methods that every task may have. The caller may change the slice.
func StandardMethods() []string { return slices.Clone(standard) }

// never are the methods of RFC 9110 that no task may have, each with the reason.
var never = map[string]string{
	"CONNECT": "a method that opens a tunnel and is not a request",
	"TRACE":   "a method that has the answer give the request back, credentials included; no API needs it",
}

// Methods are the methods that tasks may have besides the standard ones, such as "PROPFIND". A name
// that MethodFault rejects allows nothing.
type Methods []string

// MethodFault returns why no task may have the method, whatever methods are allowed; "" if a task may have it.
func MethodFault(method string) string {
	if reason := never[strings.ToUpper(method)]; reason != "" {
		return reason
	}
	if !Token(method) {
		return "not an HTTP method; write a word such as GET or POST"
	}
	return ""
}

// Fault returns why a task may not have the method, "" if it may. Methods are case-sensitive, as in RFC 9110.
func (m Methods) Fault(method string) string {
	if reason := MethodFault(method); reason != "" {
		return reason
	}
	if slices.Contains(standard, method) || slices.Contains(m, method) {
		return ""
	}
	if upper := strings.ToUpper(method); upper != method && slices.Contains(standard, upper) {
		return "a method is written in upper case: " + upper
	}
	return "not one of " + strings.Join(slices.Concat(standard, m), ", ") +
		"; if it is meant, name it with -allow-method, for enqueue and the workers"
}

// Token reports whether s is a token of RFC 9110 section 5.6.2, as methods and names of headers are.
func Token(s string) bool {
	for i := range len(s) {
		if c := s[i]; !Alnum(c) && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// Alnum reports whether c is an ASCII letter or digit.
func Alnum(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
