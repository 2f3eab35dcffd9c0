package control

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Plain returns the text of an error without the name of the package that it comes from.
func Plain(err error) string {
	text := err.Error()
	for _, name := range []string{"throttle: ", "queue: ", "policystore: "} {
		text = strings.TrimPrefix(text, name)
	}
	return text
}

// quote returns a name as a sentence has it: in quotes only where it is empty, or has what cannot be printed.
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
