package upstream

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	maxName   = 64   // bytes of a Quota's Name, Unit and Source
	maxFields = 64   // fields of an answer that are read
	maxValues = 8    // values of a field
	maxValue  = 1024 // bytes of a value
)

// A field is a header field that may describe a limit.
type field struct {
	name   string // lower case, "rate-limit" written as "ratelimit"
	values []string
}

// collect returns these fields, sorted. X-RateLimit-Limit and X-Rate-Limit-Limit, and names that differ in case, are one field.
func collect(header http.Header) (fields []field) {
	var keys []string
	for key := range header {
		if isOurs(key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys[:min(len(keys), maxFields)] {
		name := strings.Replace(strings.ToLower(key), "rate-limit", "ratelimit", 1)
		at := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
		if at < 0 {
			at, fields = len(fields), append(fields, field{name: name})
		}
		all := slices.Concat(fields[at].values, header[key]) // never into the header's own
		fields[at].values = all[:min(len(all), maxValues)]
	}
	return fields
}

// isOurs is asked of every name of every answer: it does not allocate.
func isOurs(key string) bool {
	if hasPrefixFold(key, "beta-") || hasPrefixFold(key, "x-beta-") { // Atlassian's fields of limits that do not hold yet
		return false
	}
	for i := range len(key) {
		if key[i]|0x20 == 'r' && (hasPrefixFold(key[i:], "ratelimit") ||
			hasPrefixFold(key[i:], "rate-limit") || hasPrefixFold(key[i:], "retry-after")) {
			return true
		}
	}
	for i := range prefixes {
		if hasPrefixFold(key, prefixes[i].prefix) {
			return true
		}
	}
	return strings.EqualFold(key, shopifyField) || strings.EqualFold(key, salesforceField)
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// fieldOf returns the field of a name, without values if there is none.
func fieldOf(fields []field, name string) *field {
	for i := range fields {
		if fields[i].name == name {
			return &fields[i]
		}
	}
	return &field{}
}

// trimmed returns the values that are short enough to be read whole.
func (f *field) trimmed() []string {
	values := make([]string, 0, len(f.values))
	for _, v := range f.values {
		if v = strings.Trim(v, " \t"); len(v) <= maxValue {
			values = append(values, v)
		}
	}
	return values
}

// members reads the values as one list.
func (f *field) members() []member {
	var all []member
	for _, v := range f.values {
		all = append(all, members(v[:min(len(v), maxValue)], len(v) <= maxValue)...)
	}
	return all
}

// A role is the part of a quota that a field gives.
type role byte

const (
	noRole role = iota
	limitRole
	remainingRole
	usedRole
	resetRole      // when it is whole again, in one of many forms
	resetAfterRole // the same as a wait: more exact, and no clock comes in
	windowRole     // length of the window, in milliseconds
	nameRole
)

var roles = map[string]role{
	"limit": limitRole, "max": limitRole, "remaining": remainingRole,
	"used": usedRole, "observed": usedRole,
	"reset": resetRole, "resettime": resetRole, "reset-after": resetAfterRole,
	"interval-milliseconds": windowRole, "resource": nameRole, "name": nameRole,
}

// windows are the words for one. A month and a year are the longest that there are: a limit over them is taken for the lower rate.
var windows = map[string]time.Duration{
	"second": time.Second, "secondly": time.Second, "minute": time.Minute, "minutely": time.Minute,
	"hour": time.Hour, "hourly": time.Hour, "day": day, "daily": day, "week": 7 * day, "weekly": 7 * day,
	"month": 31 * day, "monthly": 31 * day, "year": 366 * day, "yearly": 366 * day,
}

// units are those that APIs write in more than one way.
var units = map[string]string{
	"": "requests", "request": "requests", "req": "requests", "token": "tokens",
}

// prefixes are those of fields in this form that do not say ratelimit.
var prefixes = []struct{ prefix, source, window string }{
	{"anthropic-priority-", "anthropic-priority", ""},
	{"x-app-limit-24hour-", "x-app-limit", "-day"},
	{"x-user-limit-24hour-", "x-user-limit", "-day"},
}

// A subject is the quota that a field speaks of, as the field's name has it.
type subject struct {
	source string
	unit   string
	byUnit bool // the name says the unit
	window time.Duration
}

// parseName reads <source>-<role>-<unit>-<window> and <source>-<unit>-<window>-<role>; unit and window are optional.
func parseName(name string) (subject, role) {
	source, rest := cutSource(name)
	if !isWord(source) {
		return subject{}, noRole
	}
	part, r := cutRole(rest)
	s := subject{source: source}
	part, s.window = cutWindow(part)
	if s.unit = unitOf(part); s.unit == "" || hasRole(part) {
		return subject{}, noRole
	}
	s.byUnit = part != ""
	return s, r
}

// cutSource cuts x-ratelimit-limit-tokens into x-ratelimit and limit-tokens.
func cutSource(name string) (source, rest string) {
	for _, p := range prefixes {
		if rest, ok := strings.CutPrefix(name, p.prefix); ok {
			return p.source, rest + p.window
		}
	}
	const word = "ratelimit"
	at := strings.Index(name, word)
	if at < 0 || at > 0 && name[at-1] != '-' {
		return "", ""
	}
	source, rest = name[:at+len(word)], name[at+len(word):]
	if rest != "" && rest[0] != '-' {
		return "", ""
	}
	return source, strings.TrimPrefix(rest, "-")
}

// cutRole cuts limit-tokens and tokens-limit into tokens and its role. A window alone (daily), and nothing at all, are a limit.
func cutRole(rest string) (part string, r role) {
	if rest == "" || strings.HasSuffix(rest, "ly") && windows[rest] != 0 {
		return rest, limitRole
	}
	if r := roles[rest]; r != noRole {
		return "", r
	}
	words := strings.Split(rest, "-")
	first, last := words[0], words[len(words)-1]
	switch {
	case strings.HasSuffix(rest, "-reset-after"):
		return strings.TrimSuffix(rest, "-reset-after"), resetAfterRole
	case strings.HasPrefix(rest, "reset-after-"):
		return strings.TrimPrefix(rest, "reset-after-"), resetAfterRole
	case roles[first] != noRole && roles[first] != nameRole:
		return rest[len(first)+1:], roles[first]
	case roles[last] != noRole && roles[last] != nameRole:
		return rest[:len(rest)-len(last)-1], roles[last]
	}
	return rest, noRole
}

// cutWindow cuts a window's word off either end: videos-minute, daily-requests.
func cutWindow(part string) (rest string, length time.Duration) {
	if at := strings.LastIndexByte(part, '-'); windows[part[at+1:]] != 0 {
		length, rest = windows[part[at+1:]], part[:max(at, 0)]
		if rest == "per" {
			return "", length
		}
		return strings.TrimSuffix(rest, "-per"), length
	}
	if first, rest, _ := strings.Cut(part, "-"); windows[first] != 0 {
		return rest, windows[first]
	}
	return part, 0
}

func hasRole(part string) bool {
	return slices.ContainsFunc(strings.Split(part, "-"), func(word string) bool { return roles[word] != noRole })
}

// unitOf returns the one way to write a unit, "" for what is none.
func unitOf(s string) string {
	s = strings.ToLower(s)
	if unit, ok := units[s]; ok {
		return unit
	}
	if !isWord(s) {
		return ""
	}
	return s
}

func isWord(s string) bool {
	return len(s) <= maxName && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == "" && strings.Trim(s, "-_.") != ""
}

// printable cuts a name to its bound, and returns "" for one that is not printable ASCII.
func printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
		return ""
	}
	return s[:min(len(s), maxName)]
}
