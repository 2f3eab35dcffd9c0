package outbound

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"html"
	"io"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

const redacted = "[redacted]"

const (
	shortest   = 4  // a shorter secret is hidden only where it stands as a word
	headerPart = 8  // so many bytes of a header, query or password are hidden even alone
	bodyPart   = 16 // and of a value in the body, which is more often plain words
)

// secrets is what of a request must not come back in an error: header values,
// userinfo, query, fragment, and the values in the body (not its field names).
type secrets struct {
	words map[string]int // in lower case, with the length from which a part is hidden
}

// secrets collects them. It is made for an error only, and costs about as much
// as parsing the body.
func (c *call) secrets() *secrets {
	s := &secrets{words: make(map[string]int)}
	for name, value := range c.source.Headers {
		s.addHeader(name, value)
	}
	if user := c.parsed.User; user != nil {
		password, _ := user.Password()
		s.add(user.Username(), headerPart)
		s.add(password, headerPart)
		s.add(user.String(), headerPart)
		s.add(basicAuth(user.Username(), password), headerPart)
	}
	s.addQuery(c.parsed.RawQuery)
	s.add(c.parsed.Fragment, headerPart)
	s.add(c.parsed.EscapedFragment(), headerPart)
	if !s.addJSON(c.body) {
		s.addText(c.body)
	}
	return s
}

// add takes one secret, and how it looks when it is quoted in JSON, HTML or a URL.
func (s *secrets) add(secret string, part int) {
	secret = strings.TrimSpace(secret)
	if secret == "" {
		return
	}
	quoted, _ := json.Marshal(secret)
	for _, form := range []string{
		secret, strings.Trim(string(quoted), `"`), html.EscapeString(secret), url.QueryEscape(secret), url.PathEscape(secret),
	} {
		form = lower(form)
		if old, ok := s.words[form]; !ok || part < old {
			s.words[form] = part
		}
	}
}

// addHeader takes a value, and the words in it: a cookie, a part of a signature.
// The scheme of an Authorization is left out: "Bearer" is in every 401.
func (s *secrets) addHeader(name, value string) {
	value = strings.TrimSpace(value)
	if strings.EqualFold(name, "Authorization") {
		if _, credentials, ok := strings.Cut(value, " "); ok {
			value = strings.TrimSpace(credentials)
		}
		if pair, err := base64.StdEncoding.DecodeString(value); err == nil && utf8.Valid(pair) {
			user, password, _ := strings.Cut(string(pair), ":")
			s.add(string(pair), headerPart)
			s.add(user, headerPart)
			s.add(password, headerPart)
		}
	}
	s.add(value, headerPart)
	for word := range strings.FieldsFuncSeq(value, func(r rune) bool { return strings.ContainsRune(" \t,;=\"'", r) }) {
		if len(word) >= shortest {
			s.add(word, headerPart)
		}
	}
}

func (s *secrets) addQuery(raw string) {
	s.add(raw, headerPart)
	for pair := range strings.FieldsFuncSeq(raw, func(r rune) bool { return r == '&' || r == ';' }) {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			value = key
		}
		s.add(value, headerPart)
		if plain, err := url.QueryUnescape(value); err == nil {
			s.add(plain, headerPart)
		}
	}
}

// addJSON takes the strings and numbers of a JSON body, as they are meant and as
// they are written. It reports false if the body is something else.
func (s *secrets) addJSON(body string) bool {
	dec := json.NewDecoder(strings.NewReader(body))
	dec.UseNumber()
	type level struct{ object, key bool }
	levels := []level{{}}
	for {
		from := dec.InputOffset()
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return len(levels) == 1
		}
		if err != nil {
			return false
		}
		top := &levels[len(levels)-1]
		isKey := top.object && top.key
		if top.object {
			top.key = !top.key
		}
		switch t := token.(type) {
		case json.Delim:
			if t == '{' || t == '[' {
				levels = append(levels, level{object: t == '{', key: true})
			} else {
				levels = levels[:len(levels)-1]
			}
		case string:
			if !isKey {
				s.addBody(t)
				s.addBody(strings.Trim(body[from:dec.InputOffset()], " \t\r\n,:\""))
			}
		case json.Number:
			s.addBody(t.String())
		}
	}
}

// addText takes the words of a body that is a form, XML or anything else.
func (s *secrets) addText(body string) {
	for word := range strings.FieldsFuncSeq(body, func(r rune) bool {
		return unicode.IsSpace(r) || strings.ContainsRune(`&=<>"',;{}[]()`, r)
	}) {
		s.addBody(word)
		if plain, err := url.QueryUnescape(word); err == nil {
			s.addBody(plain)
		}
	}
}

func (s *secrets) addBody(value string) {
	if len(value) >= shortest {
		s.add(value, bodyPart)
	}
}

// hide replaces in text all that is, or is a long part of, a secret.
func (s *secrets) hide(text string) string {
	low := lower(text)
	hidden := make([]bool, len(low))
	grams := map[int]map[string][]int{headerPart: positions(low, headerPart), bodyPart: positions(low, bodyPart)}
	for word, part := range s.words {
		hideWhole(low, word, hidden)
		for i := 0; i+part < len(word); i++ {
			for _, at := range grams[part][word[i:i+part]] {
				cover(hidden, at, part)
			}
		}
	}
	var b strings.Builder
	for i := range len(text) {
		switch {
		case !hidden[i]:
			b.WriteByte(text[i])
		case i == 0 || !hidden[i-1]:
			b.WriteString(redacted)
		}
	}
	return b.String()
}

func hideWhole(text, word string, hidden []bool) {
	for from := 0; ; {
		i := strings.Index(text[from:], word)
		if i < 0 {
			return
		}
		at := from + i
		end := at + len(word)
		inside := at > 0 && isAlnum(text[at-1]) || end < len(text) && isAlnum(text[end])
		if len(word) >= shortest || !inside {
			cover(hidden, at, len(word))
		}
		from = at + 1
	}
}

func cover(hidden []bool, at, n int) {
	for i := at; i < at+n; i++ {
		hidden[i] = true
	}
}

// positions maps each run of n bytes in text to where it stands.
func positions(text string, n int) map[string][]int {
	m := make(map[string][]int, len(text))
	for i := 0; i+n <= len(text); i++ {
		m[text[i:i+n]] = append(m[text[i:i+n]], i)
	}
	return m
}

// lower changes ASCII letters only, so that no byte moves.
func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}
