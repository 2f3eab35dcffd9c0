package control

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Plain returns the text of an error without the name of its package.
func Plain(err error) string {
	text := err.Error()
	for _, name := range []string{"throttle: ", "queue: ", "policystore: "} {
		text = strings.TrimPrefix(text, name)
	}
	return text
}

// quote returns a name for a sentence. It adds quotes only if the name is empty, or cannot be printed
// as it is.
func quote(name string) string {
	const most = 300
	if len(name) > most {
		name = strings.ToValidUTF8(name[:most], "") + "…"
	}
	if name == "" || !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(name)
	}
	return name
}
