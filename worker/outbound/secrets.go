package outbound

import (
	"encoding/base64"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

const redacted = "[redacted]"

const (
	shortest   = 4  // a shorter secret is hidden only if it is a word of its own
	headerPart = 8  // a part of a header, query or password is hidden from this length on
	bodyPart   = 16 // the same for a value in the body, which is more often plain words
)

// maxSecret bounds the bytes of URL, headers and body of a request with which an answer is compared.
const maxSecret = 512 << 10

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
// its field names), each with the length from which a part of it is hidden.
func (c *call) eachSecret(look func(secret string, part int)) {
	short := func(secret string) { look(secret, headerPart) }
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
	for segment := range strings.SplitSeq(c.parsed.EscapedPath(), "/") {
		if secretSegment(segment) {
			short(segment)
		}
	}
	eachQuerySecret(c.parsed.RawQuery, short)
	short(c.parsed.Fragment)
	short(c.parsed.EscapedFragment())
	eachBodySecret(c.body, func(secret string) {
		if len(secret) >= shortest {
			look(secret, bodyPart)
		}
	})
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

// eachBodySecret calls look with the strings and numbers of a JSON body. In any other body, also in several JSON values one
// behind the other, it looks at the words too: 0000 is four numbers to a decoder.
func eachBodySecret(body string, look func(string)) {
	duplicates, invalid := jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)
	dec := jsontext.NewDecoder(strings.NewReader(body), duplicates, invalid)
	for {
		token, err := dec.ReadToken()
		if err != nil {
			break
		}
		within, n := dec.StackIndex(dec.StackDepth())
		isName := within == jsontext.KindBeginObject && n%2 == 1
		if kind := token.Kind(); !isName && (kind == jsontext.KindString || kind == jsontext.KindNumber) {
			look(token.String())
		}
	}
	if jsontext.Value(body).IsValid(duplicates, invalid) {
		return
	}
	for word := range strings.FieldsFuncSeq(body, func(r rune) bool {
		return unicode.IsSpace(r) || strings.ContainsRune("&=<>\"',;{}[]()", r)
	}) {
		look(word)
	}
}

// What counts as a key in a path: Slack's webhooks are /services/T…/B…/KEY, Telegram's /botNUMBER:KEY/sendMessage.
const (
	longestName   = 20 // bytes of a segment that may be a word
	shortestMixed = 8  // bytes of a segment with letters and digits that may be a key; oauth2 and v1beta1 are shorter
	longestNumber = 10 // digits of a segment that may be a count, a date or the number of an order
)

// secretSegment reports whether a segment of a path looks like a key, as it is or decoded.
func secretSegment(segment string) bool {
	if plain, err := url.PathUnescape(segment); err == nil {
		segment = plain
	}
	digits, others := 0, 0
	for i := range len(segment) {
		switch c := segment[i]; {
		case '0' <= c && c <= '9':
			digits++
		case c != '-' && c != '_' && c != '.':
			others++
		}
	}
	return len(segment) > longestName ||
		len(segment) >= shortestMixed && digits > 0 && others > 0 ||
		digits > longestNumber
}

// shownPath returns an escaped path without the parts that look like a key, and without known secrets.
func shownPath(path string, known []string) string {
	for _, secret := range known {
		path = strings.ReplaceAll(path, url.PathEscape(secret), redacted)
	}
	segments := strings.Split(path, "/")
	for i, segment := range segments {
		if segment != redacted && secretSegment(segment) {
			segments[i] = redacted
		}
	}
	return strings.Join(segments, "/")
}
