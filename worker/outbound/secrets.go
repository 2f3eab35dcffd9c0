package outbound

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"unicode"
	"unicode/utf8"
)

const redacted = "[redacted]"

const (
	shortest   = 4  // a shorter secret is hidden only if it is a word of its own
	headerPart = 8  // a part of a header, query or password is hidden from this length on
	bodyPart   = 16 // the same for a value in the body, which is more often plain words
)

// maxSecret bounds the bytes of URL, headers and body of a request with which an answer is compared.
// It is the maximum of a line of enqueue batch.
const maxSecret = 1 << 20

// secretBytes returns how many bytes an answer is compared with.
func (c *call) secretBytes() int {
	n := len(c.source.URL) + len(c.body)
	for name, value := range c.source.Headers {
		n += len(name) + len(value)
	}
	return n
}

// eachSecret calls look with all of a request that must not appear in an error: header values,
// userinfo, query, fragment, parts of the path that look like a key, and the values in the body (not
// its field names), each with the length from which a part of it is hidden. It copies only what base64
// and URLs encode. It stops when look returns false.
func (c *call) eachSecret(look func(secret string, part int) bool) {
	ok := true
	short := func(secret string) { ok = ok && look(secret, headerPart) }
	for name, value := range c.source.Headers {
		eachHeaderSecret(name, value, short)
	}
	for _, secret := range c.given {
		short(secret)
	}
	if user := c.parsed.User; user != nil {
		password, _ := user.Password()
		short(user.Username())
		short(password)
		short(user.String())
		short(basicAuth(user.Username(), password))
	}
	eachPathSecret(c.parsed.EscapedPath(), short)
	eachQuerySecret(c.parsed.RawQuery, short)
	short(c.parsed.Fragment)
	short(c.parsed.EscapedFragment())
	if ok {
		eachBodySecret(c.body, func(secret string) bool { return look(secret, bodyPart) })
	}
}

// eachHeaderSecret calls look with a value, and with the words in it: a cookie, a part of a signature.
// The scheme of an Authorization is left out: "Bearer" is in every 401.
func eachHeaderSecret(name, value string, look func(string)) {
	value = strings.TrimSpace(value)
	if strings.EqualFold(name, "Authorization") {
		if _, credentials, ok := strings.Cut(value, " "); ok {
			value = strings.TrimSpace(credentials)
		}
		if pair, err := base64.StdEncoding.DecodeString(value); err == nil && utf8.Valid(pair) {
			user, password, _ := strings.Cut(string(pair), ":")
			look(string(pair))
			look(user)
			look(password)
		}
	}
	look(value)
	for word := range strings.FieldsFuncSeq(value, func(r rune) bool {
		return r == ' ' || r == '\t' || r == ',' || r == ';' || r == '=' || r == '"' || r == '\''
	}) {
		if shortest <= len(word) && len(word) < headerPart { // longer ones are parts of value
			look(word)
		}
	}
}

func eachQuerySecret(raw string, look func(string)) {
	look(raw)
	for pair := range strings.FieldsFuncSeq(raw, func(r rune) bool { return r == '&' || r == ';' }) {
		_, value, ok := strings.Cut(pair, "=")
		if !ok {
			value = pair
		}
		look(value)
	}
}

// eachBodySecret calls look with the strings and numbers of a JSON body as they are written, or with
// the words of any other body.
func eachBodySecret(body string, look func(string) bool) {
	long := func(value string) bool { return len(value) < shortest || look(value) }
	if json.Valid([]byte(body)) {
		eachJSONValue(body, long)
		return
	}
	for word := range strings.FieldsFuncSeq(body, func(r rune) bool {
		return r < utf8.RuneSelf && betweenWords[r] || r >= utf8.RuneSelf && unicode.IsSpace(r)
	}) {
		if !long(word) {
			return
		}
	}
}

var betweenWords = func() (is [utf8.RuneSelf]bool) {
	for _, c := range " \t\n\v\f\r&=<>\"',;{}[]()" {
		is[c] = true
	}
	return is
}()

// eachJSONValue calls look with each string that is no field name, without its quotes, and with each
// number. body is valid JSON.
func eachJSONValue(body string, look func(string) bool) {
	for i := 0; i < len(body); {
		from := i
		switch c := body[i]; {
		case c == '"':
			i = endOfString(body, i)
			text := body[from+1 : i-1]
			if rest := strings.TrimLeft(body[i:], " \t\r\n"); !strings.HasPrefix(rest, ":") && !look(text) {
				return
			}
		case c == '-' || '0' <= c && c <= '9':
			for i < len(body) && strings.IndexByte("+-.0123456789eE", body[i]) >= 0 {
				i++
			}
			if !look(body[from:i]) {
				return
			}
		default: // space, punctuation, and the letters of true, false and null
			i++
		}
	}
}

// endOfString returns where the string ends that begins at i.
func endOfString(body string, i int) int {
	for i++; body[i] != '"'; i++ {
		if body[i] == '\\' {
			i++
		}
	}
	return i + 1
}
