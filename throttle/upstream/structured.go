package upstream

import "strings"

// maxMembers is the most members of a list that are read.
const maxMembers = 32

// A member is one of a structured field's list or dictionary (RFC 9651).
type member struct {
	key    string // in a dictionary
	value  bare
	params []param
}

type param struct {
	key   string
	value bare
}

// A bare is a value without parameters. Of kinds that no field here has
// (byte sequences, booleans, dates), only the end is looked for.
type bare struct {
	kind kind
	text string // without quotes and escapes
}

type kind byte

const (
	number kind = iota + 1
	text        // "quoted"
	token
	other
)

// param returns the last parameter of that name, as the RFC has it.
func (m *member) param(key string) (value bare) {
	for _, p := range m.params {
		if p.key == key {
			value = p.value
		}
	}
	return value
}

// members reads a list or a dictionary. A member that is not well formed is
// left out and the next one begins behind its first comma, so that a bad one
// hides no good one.
func members(s string, whole bool) []member {
	var found []member
	for range maxMembers {
		s = strings.TrimLeft(s, " \t,")
		if s == "" {
			break
		}
		r := reader{rest: s}
		m, ok := r.member()
		// Where the value was cut, what ends with it may go on behind the cut.
		if ok && r.rest == "" && !whole {
			break
		}
		if ok {
			found = append(found, m)
			s = r.rest
		}
		_, s, _ = strings.Cut(s, ",")
	}
	return found
}

// A reader takes what it reads from the front of rest.
type reader struct{ rest string }

// member reads up to a comma or the end.
func (r *reader) member() (m member, ok bool) {
	if m.value, ok = r.bare(); !ok {
		return m, false
	}
	if m.value.kind == token && r.take('=') {
		m.key = m.value.text
		if m.value, ok = r.bare(); !ok {
			return m, false
		}
	}
	for r.skip(); r.take(';'); r.skip() {
		p, ok := r.param()
		if !ok {
			return m, false
		}
		m.params = append(m.params, p)
	}
	return m, r.rest == "" || r.rest[0] == ','
}

func (r *reader) param() (p param, ok bool) {
	r.skip()
	if p.key = r.span(isTokenChar); p.key == "" {
		return p, false
	}
	if !r.take('=') {
		return p, true // true, says the RFC
	}
	p.value, ok = r.bare()
	return p, ok
}

func (r *reader) bare() (bare, bool) {
	if r.rest == "" {
		return bare{}, false
	}
	switch c := r.rest[0]; {
	case c == '"':
		return r.quoted()
	case c == '-' || '0' <= c && c <= '9':
		s := r.span(isNumberChar)
		return bare{number, s}, true
	case c == ':':
		return r.bytes()
	case c == '?' || c == '@':
		r.rest = r.rest[1:]
		return bare{kind: other}, r.span(isNumberChar) != ""
	}
	s := r.span(isTokenChar)
	return bare{token, s}, s != ""
}

// quoted reads a string: printable ASCII, with a backslash before quotes and
// backslashes.
func (r *reader) quoted() (bare, bool) {
	var b strings.Builder
	for i := 1; i < len(r.rest); i++ {
		c := r.rest[i]
		if c == '"' {
			r.rest = r.rest[i+1:]
			return bare{text, b.String()}, true
		}
		if c == '\\' {
			i++
			if i == len(r.rest) || r.rest[i] != '"' && r.rest[i] != '\\' {
				break
			}
			c = r.rest[i]
		}
		if c < ' ' || c > '~' {
			break
		}
		b.WriteByte(c)
	}
	return bare{}, false
}

// bytes reads a byte sequence, such as a partition key, without a look at it.
func (r *reader) bytes() (bare, bool) {
	end := strings.IndexByte(r.rest[1:], ':')
	if end < 0 {
		return bare{}, false
	}
	r.rest = r.rest[end+2:]
	return bare{kind: other}, true
}

func (r *reader) skip() { r.rest = strings.TrimLeft(r.rest, " \t") }

func (r *reader) take(c byte) bool {
	if r.rest == "" || r.rest[0] != c {
		return false
	}
	r.rest = r.rest[1:]
	return true
}

// span takes the bytes for which is holds.
func (r *reader) span(is func(byte) bool) string {
	i := 0
	for i < len(r.rest) && is(r.rest[i]) {
		i++
	}
	s := r.rest[:i]
	r.rest = r.rest[i:]
	return s
}

func isNumberChar(c byte) bool { return '0' <= c && c <= '9' || c == '.' || c == '-' }

func isTokenChar(c byte) bool {
	return 'A' <= c && c <= 'Z' || isUnitChar(c) || strings.IndexByte("!#$%&'*+^`|~:/", c) >= 0
}
