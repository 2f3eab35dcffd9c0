package outbound

import (
	"bytes"
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/headway-go/headway/queue/httpsyntax"
)

// maxSearched is how many bytes of a text are searched, and so shown, at most.
const maxSearched = 5 << 10

var errTooLarge = errors.New("the request is larger than 512 KiB, too large to look for parts of it in the answer")

// hide returns text with each secret of the request, and each long part of a secret, replaced, or errTooLarge. If cut is set, the
// text was cut off: its end, which may be the beginning of a secret, is not shown.
//
// The work is proportional to the request and to the first maxSearched bytes of the text: it puts every
// run of bytes of the text that a secret may contain into a set, and scans each secret once.
func (c *call) hide(text string, cut bool) (string, error) {
	if c.secretBytes() > maxSecret {
		return "", errTooLarge
	}
	if len(text) > maxSearched {
		text, cut = text[:maxSearched], true
	}
	s := newSearch(text)
	c.eachSecret(s.look)
	shown := len(text)
	if cut {
		shown = max(0, shown-bodyPart+1)
	}
	return s.result(shown), nil
}

// search looks for secrets in one text, which may contain them as they are, escaped as in JSON, HTML or
// URLs, or in two of these at once. Each reading of the text, a view, knows where in the text its bytes
// come from. Secrets are read as they are and decoded once.
type search struct {
	text   string
	views  []view
	grams  [bodyPart + 1]grams // of the views, by length; nil until a secret needs it
	folded []byte              // the secret at hand, as it is compared
}

func newSearch(text string) *search {
	whole := newView(text)
	views := append([]view{whole}, whole.decodings()...)
	for _, once := range views[1:] {
		views = append(views, once.decodings()...)
	}
	for i, v := range views {
		views[i] = v.folded()
	}
	return &search{text: text, views: views}
}

// look searches for one secret, of which parts of at least that length are hidden.
func (s *search) look(secret string, part int) {
	secret = strings.TrimSpace(secret)
	s.scan(secret, part)
	for _, e := range escapes {
		if strings.IndexByte(secret, e.first) >= 0 {
			s.scan(e.decode(secret), part)
		}
	}
}

// scan reads a secret, and marks the parts of it that the text contains.
func (s *search) scan(secret string, part int) {
	s.folded = s.folded[:0]
	fold(secret, func(c byte, _, _ int) { s.folded = append(s.folded, c) })
	folded := bytes.Trim(s.folded, " ")
	n := min(part, len(folded))
	if n == 0 {
		return
	}
	set := s.set(n)
	var g gram
	for _, c := range folded {
		g = g.push(c)
		run := g.last(n)
		if marked, found := set[run]; found && !marked { // shorter at first: zero bytes, which mark what begins with them
			set[run] = true
		}
	}
}

// set returns the runs of n bytes in the text.
func (s *search) set(n int) grams {
	if s.grams[n] == nil {
		set := grams{}
		for _, v := range s.views {
			v.each(n, func(_ int, g gram) { set[g] = false })
		}
		s.grams[n] = set
	}
	return s.grams[n]
}

// result returns the first shown bytes of the text, without what was marked.
func (s *search) result(shown int) string {
	until := make([]int, len(s.text)+1) // by the beginning of a hidden part: its end
	for n, set := range s.grams {
		if set == nil {
			continue
		}
		for _, v := range s.views {
			v.each(n, func(at int, g gram) {
				if set[g] && (n >= shortest || v.isWord(at, n)) {
					from := v.from[at]
					until[from] = max(until[from], v.to[at+n-1])
				}
			})
		}
	}
	var b strings.Builder
	end, open := 0, false
	for i := range shown {
		if end = max(end, until[i]); i >= end {
			b.WriteByte(s.text[i])
		} else if !open {
			b.WriteString(redacted)
		}
		open = i < end
	}
	return b.String()
}

// gram is up to sixteen consecutive bytes.
type gram struct{ high, low uint64 }

func (g gram) push(c byte) gram { return gram{g.high<<8 | g.low>>56, g.low<<8 | uint64(c)} }

// last returns the last n bytes.
func (g gram) last(n int) gram {
	if n <= 8 {
		return gram{0, g.low & (1<<(8*n) - 1)}
	}
	return gram{g.high & (1<<(8*(n-8)) - 1), g.low}
}

// grams are runs of bytes of one length, and whether a secret contains them.
type grams map[gram]bool

// view is one reading of a text. Its byte i stands for the bytes from[i] to to[i] of the text.
type view struct {
	text     []byte
	from, to []int
}

func newView(text string) view {
	v := view{text: []byte(text)}
	for i := range len(text) {
		v.from, v.to = append(v.from, i), append(v.to, i+1)
	}
	return v
}

// put adds bytes that stand for those of the other view from i to j.
func (v *view) put(c []byte, of view, i, j int) {
	for _, b := range c {
		v.text, v.from, v.to = append(v.text, b), append(v.from, of.from[i]), append(v.to, of.to[j-1])
	}
}

// decodings returns the view decoded once for each kind of escape that it contains.
func (v view) decodings() []view {
	var decoded []view
	var buf []byte
	text := string(v.text)
	for _, e := range escapes {
		d, changed := view{}, false
		for i := 0; i < len(text); {
			c, used, escaped := e.next(buf[:0], text[i:])
			d.put(c, v, i, i+used)
			buf, changed = c, changed || escaped
			i += used
		}
		if changed {
			decoded = append(decoded, d)
		}
	}
	return decoded
}

// folded returns the view in the form in which secrets are compared. See fold.
func (v view) folded() (f view) {
	fold(string(v.text), func(c byte, i, j int) { f.put([]byte{c}, v, i, j) })
	return f
}

// each calls f with all runs of n bytes, and their positions.
func (v view) each(n int, f func(at int, g gram)) {
	var g gram
	for i, c := range v.text {
		g = g.push(c)
		if at := i + 1 - n; at >= 0 {
			f(at, g.last(n))
		}
	}
}

func (v view) isWord(at, n int) bool {
	return (at == 0 || !httpsyntax.Alnum(v.text[at-1])) && (at+n == len(v.text) || !httpsyntax.Alnum(v.text[at+n]))
}

// fold calls put with the bytes as which s is compared, and for each with the place in s, from i to j, that it replaces: ASCII letters
// ignoring case, and any white space, with the + that URLs write for it, as one space, since clean leaves one in an error.
func fold(s string, put func(c byte, i, j int)) {
	for i, j := 0, 0; i < len(s); i = j {
		c, end := foldByte(s, i)
		for j = end; c == ' ' && j < len(s); j = end {
			var next byte
			if next, end = foldByte(s, j); next != ' ' {
				break
			}
		}
		put(c, i, j)
	}
}

// foldByte returns the byte as which s[i] is compared, and where what it replaces ends.
func foldByte(s string, i int) (c byte, end int) {
	r, n := utf8.DecodeRuneInString(s[i:])
	switch c = s[i]; {
	case unicode.IsSpace(r), c == '+':
		return ' ', i + n
	case 'A' <= c && c <= 'Z':
		c += 'a' - 'A'
	}
	return c, i + 1
}
