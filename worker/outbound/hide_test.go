package outbound

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hibiken/asynq"
)

func callOf(tb testing.TB, p payload) *call {
	tb.Helper()
	if p.URL == "" {
		p.URL = "http://h/"
	}
	c, err := (&Handler{cfg: Config{UserAgent: "ua"}}).parse(task(tb, p).Payload(), "")
	must(tb, err)
	return c
}

// "Hiding costs time in proportion to request and answer": some 0.1 s for the largest and costliest, and minutes if it were not linear.
func TestHidingIsLinear(t *testing.T) {
	t.Parallel()
	const n = maxSecret - 1000
	fill := func(word string, n int) string { return strings.Repeat(word, n/len(word)+1)[:n] }
	var words strings.Builder
	for i := range 1 << 16 {
		fmt.Fprintf(&words, "%04x ", i)
	}
	distinct, escaped := words.String(), fill(`\u0026amp;#x26;%26%5c`, 2000)
	for name, tc := range map[string]struct {
		p    payload
		text string
	}{
		"one letter":     {payload{Body: fill("a", n)}, fill("a", 2000)},
		"distinct words": {payload{Body: fill(distinct, n)}, distinct[:2000]},
		"nested":         {payload{Body: strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + fill(" ", n-18000)}, "[[[["},
		"escapes":        {payload{Body: fill(`%41&#65;\u0041`, n)}, escaped},
		"no escapes":     {payload{Body: fill(`%zz&#zz;\uzzzz`, n)}, escaped},
		"white space":    {payload{Body: fill("\u2003+ \t", n)}, fill("\u2003+", 2000)},
		"header":         {payload{Headers: map[string]string{"Cookie": fill("abcd=ab; ", n)}}, fill("abcd=ab; ", 2000)},
		"query":          {payload{URL: "http://h/?" + fill("k=abcd&", n)}, fill("abcd", 2000)},
		"path":           {payload{URL: "http://h/" + fill("abcd1234/", n)}, fill("abcd1234/", 2000)},
	} {
		c, begun := callOf(t, tc.p), time.Now()
		if _, err := c.hide(tc.text, false); err != nil || time.Since(begun) > 10*time.Second {
			t.Errorf("%s: %s, %v", name, time.Since(begun), err)
		}
	}
}

// "Of a request of more than 512 KiB none are kept", and the error says so.
func TestOfHugeRequestsNoAnswerIsShown(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "hush", http.StatusTeapot) })
	h, large := handler(t, Config{}, seams{}), strings.Repeat("hush", maxSecret/4+1)
	err := run(t, h, payload{URL: s.URL, Body: large})
	var status *StatusError
	const want = "[not shown: the request is larger than 512 KiB, too large to look for parts of it in the answer]"
	if !errors.As(err, &status) || status.Snippet != want {
		t.Errorf("got %v", err)
	}
	broken := listen(t, func(p *peer) { p.request(); p.say("hush") })
	err = run(t, h, payload{URL: broken.url, Body: large})
	if err == nil || strings.Contains(err.Error(), "hush") || !strings.Contains(err.Error(), "not shown") {
		t.Errorf("got %v", err)
	}
	// What holds nothing of the request is shown.
	wantPermanent(t, run(t, h, payload{URL: "http://127.0.0.1:1", Body: large}), false, "connection refused")
}

// A text that is cut may end within a short secret, of which no part is known.
func TestHideCut(t *testing.T) {
	t.Parallel()
	c := callOf(t, payload{Headers: map[string]string{"X-A": "sesame"}})
	text := strings.Repeat("x", 20) + " sesam"
	if got, err := c.hide(text, true); err != nil || strings.Contains(got, "s") {
		t.Errorf("%q, %v", got, err)
	}
	long := strings.Repeat("-", maxSearched-3) + "sesame"
	if got, err := c.hide(long, false); err != nil || len(got) != maxSearched-bodyPart+1 {
		t.Errorf("%q, %v", got, err)
	}
}

// Escapes within escapes, and white space that becomes a single one on a log's line.
func TestHideEscaped(t *testing.T) {
	t.Parallel()
	c := callOf(t, payload{Headers: map[string]string{"X-Key": `a"b<c>&d ef/+gh`}})
	for _, text := range []string{
		`a"b<c>&d ef/+gh`, `A"B<C>&D EF/+GH`, `a\"b\u003cc\u003e\u0026d ef\/+gh`, `a&quot;b&lt;c&gt;&amp;d ef/+gh`, `a&#34;b&#X3C;c&#62;&#038;d&nbsp;ef/&#43;gh`,
		`a%22b%3Cc%3e%26d+ef%2F%2Bgh`, `a%22b%3Cc%3E%26d%20ef/+gh`, `a\\\"b\\u003cc\\u003e\\u0026d ef/+gh`, `a%5C%22b%3Cc%3E%26d+ef%2F%2Bgh`,
		`a&#92;&quot;b&lt;c&gt;&amp;d ef/+gh`, `a\"b\u0026lt;c\u0026gt;\u0026amp;d ef/+gh`, "a\"b<c>&d \n\t ef/+gh", `a"b<c>&d`, `<c>&d ef/`,
	} {
		if got, err := c.hide("("+text+")", false); got != "("+redacted+")" || err != nil {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
}

// known returns what of a request is secret by the words of the documentation, found without any of the code that is tested.
func known(p payload) map[string]int {
	secrets := map[string]int{}
	add := func(secret string, part int) {
		// U+FFFD is what clean makes of what does not print, and so no leak.
		// Its length is counted as it is compared: white space within it counts once.
		if secret = strings.TrimSpace(secret); len(oneSpace.ReplaceAllString(secret, " ")) >= shortest && !strings.ContainsRune(secret, utf8.RuneError) {
			secrets[secret] = part
		}
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case string:
			add(v, bodyPart)
		case json.Number:
			add(v.String(), bodyPart)
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			for _, e := range v {
				walk(e)
			}
		}
	}
	var body any
	dec := json.NewDecoder(strings.NewReader(p.Body))
	dec.UseNumber()
	if dec.Decode(&body) == nil && !dec.More() {
		walk(body)
	} else {
		for _, word := range strings.FieldsFunc(p.Body, func(r rune) bool { return strings.ContainsRune(" \t\r\n\v\f\u0085\u00a0&=<>\"',;{}[]()", r) }) {
			if !strings.ContainsFunc(word, func(r rune) bool { return r > 0x7f }) {
				add(word, bodyPart)
			}
		}
	}
	for name, value := range p.Headers {
		if !strings.EqualFold(name, "Authorization") {
			add(value, headerPart)
		}
	}
	if u, err := url.Parse(p.URL); err == nil {
		for _, values := range u.Query() {
			for _, value := range values {
				add(value, headerPart)
			}
		}
	}
	return secrets
}

// oneSpace is what counts as one space, however long it is.
var oneSpace = regexp.MustCompile(`[ +\t\r\n\v\f]+`)

// leak returns a secret, or a part of one as long as is hidden, that stands in text.
func leak(text string, secrets map[string]int) (secret, found string) {
	lower := oneSpace.ReplaceAllString(asciiLower(text), " ")
	for secret, part := range secrets {
		word := oneSpace.ReplaceAllString(asciiLower(secret), " ")
		n := min(part, len(word))
		for i := 0; i+n <= len(word); i++ {
			// A part that is one line's space, or other white space, says nothing.
			if run := word[i : i+n]; strings.Trim(run, " +\t\r\n\v\f") != "" && strings.Contains(lower, run) {
				return secret, run
			}
		}
	}
	return "", ""
}

func asciiLower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// A plain search finds no part of a secret that is as long as the documentation says, whatever the request and the answer are.
func FuzzHide(f *testing.F) {
	f.Add("Bearer abcdefghijkl", "k=v+w%20x&long=0123456789", `{"a":"value of the body","n":[1234567890123456]}`, "value of the body abcdefghijkl 0123456789", uint8(0), uint8(0))
	f.Add("short", "sesame", "user=bob&password=open%20sesame", "open sesame 'short'", uint8(1), uint8(3))
	f.Add("a  b\tc", "", `["\u0041\ud83d\ude00<>&\"\\ aaaaaaaaaaaaaaaaaaaaaaa"]`, `A\ud83d\ude00`, uint8(2), uint8(7))
	f.Add("aaaaaaaaaaaaaaaaaaaaa", "aaaa", "aaaaaaaaaaaaaaaaaaaaaaaaaaa aaaa", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", uint8(3), uint8(1))
	f.Add("1  000 ==", "", `["\u0041\ud83d\ude00<>&\"\\ aaaaaaaaaaaaaaaaaaaaaaa"]`, `A\ud8+d\ude00`, uint8(2), uint8(7))
	f.Add("a"+strings.Repeat(" ", 40)+"a", "", "", "aa"+strings.Repeat(" ", 40)+"a", uint8(0), uint8(0))
	f.Add("0", "0", "0000", "0 0000", uint8(0), uint8(0)) // the body is four numbers to a decoder
	f.Fuzz(func(t *testing.T, header, query, body, text string, from, echo uint8) {
		p := payload{URL: "http://h/?" + query, Headers: map[string]string{"X-A": header}, Body: body}
		c, err := (&Handler{cfg: Config{UserAgent: "ua"}}).parse(task(t, p).Payload(), "")
		if err != nil {
			return
		}
		p = c.source // as JSON has it: valid UTF-8
		// The answer gives back what it was sent, or some of it.
		for i, part := range []string{p.Headers["X-A"], query, p.Body} {
			if echo&(1<<i) != 0 {
				text += " " + part[min(len(part), int(from)):]
			}
		}
		text = text[:min(len(text), maxSearched)]
		got, err := c.hide(text, false)
		if err != nil {
			if c.secretBytes() <= maxSecret {
				t.Fatal(err)
			}
			return
		}
		secrets := known(p)
		for _, shown := range []string{got, clean(got, len(got))} {
			for piece := range strings.SplitSeq(shown, redacted) {
				if secret, found := leak(piece, secrets); found != "" {
					t.Errorf("%q, of the secret %q, is in %q\nof %q", found, secret, shown, text)
				}
			}
		}
		if len(secrets) == 0 && header == "" && query == "" && body == "" && got != text {
			t.Errorf("%q was hidden of %q", got, text)
		}
	})
}

// The plain search of FuzzHide finds secrets that are planted before it.
func TestLeakIsFound(t *testing.T) {
	t.Parallel()
	p := payload{URL: "http://h/?k=query-value", Headers: map[string]string{"X-A": "header-value"}, Body: `{"a":"a value of the body"}`}
	secrets := known(p)
	if got := slices.Sorted(maps.Keys(secrets)); !slices.Equal(got, []string{"a value of the body", "header-value", "query-value"}) {
		t.Errorf("known: %q", got)
	}
	for text, want := range map[string]bool{
		"QUERY-va": true, "query-v": false, "xheader-vx": true, "a value of the b": true, "a value of the ": false,
	} {
		if _, found := leak(text, secrets); (found != "") != want {
			t.Errorf("%s: %q", text, found)
		}
	}
}

// The worker fills in the secrets that a task names, encoded for their place and read for each request. No error shows them.
func TestSecretsByReference(t *testing.T) {
	t.Setenv("HEADWAY_TEST_KEY", "k3y /&?")
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) { must(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("first\n")
	var got *http.Request
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = r
		if r.URL.Path == "/echo" {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, r.Header.Get("Authorization")+" "+r.URL.RawQuery)
		}
	})
	at := s.Listener.Addr().String()
	h := handler(t, Config{Secrets: []string{"env:HEADWAY_TEST_KEY@" + at, "file:" + file + "@" + at}}, seams{})
	p := payload{
		URL:     s.URL + "/bot${env:HEADWAY_TEST_KEY}/send?token=${file:" + file + "}&key=${env:HEADWAY_TEST_KEY}",
		Headers: map[string]string{"Authorization": "Bearer ${file:" + file + "}", "X-Other": "${other:x} ${env}"},
	}
	must(t, run(t, h, p))
	if got.URL.EscapedPath() != "/botk3y%20%2F&%3F/send" || got.URL.Query().Get("token") != "first" || got.URL.Query().Get("key") != "k3y /&?" ||
		got.Header.Get("Authorization") != "Bearer first" || got.Header.Get("X-Other") != "${other:x} ${env}" {
		t.Errorf("%s with %v", got.URL, got.Header)
	}
	write("second\r\n")
	if err := run(t, h, p); err != nil || got.Header.Get("Authorization") != "Bearer second" {
		t.Errorf("%v with %v", err, got.Header)
	}
	p.URL = s.URL + "/echo?key=${env:HEADWAY_TEST_KEY}"
	err := run(t, h, p)
	if err == nil || strings.Contains(err.Error(), "second") || strings.Contains(err.Error(), "k3y") || !strings.Contains(err.Error(), redacted) {
		t.Errorf("%v", err)
	}
	if c, err := h.parse([]byte(`{"url":"`+s.URL+`/a/${env:HEADWAY_TEST_KEY}/b"}`), ""); err != nil || c.target() != "GET "+s.URL+"/a/"+redacted+"/b" {
		t.Errorf("%v, %v", c, err)
	}
}

// What the worker does not give to a host is refused for good, and sends nothing; what cannot be read now may be there later.
func TestSecretsAreRefused(t *testing.T) {
	t.Setenv("HEADWAY_TEST_KEY", "key")
	t.Setenv("HEADWAY_TEST_EMPTY", "")
	large := filepath.Join(t.TempDir(), "large")
	must(t, os.WriteFile(large, make([]byte, maxReference+1), 0o600))
	h := handler(t, Config{Secrets: []string{
		"env:HEADWAY_TEST_KEY@api.example.com", "env:HEADWAY_TEST_KEY@127.0.0.1:1", "env:HEADWAY_TEST_EMPTY@api.example.com", "env:TWO\nLINES@api.example.com",
		"file:" + large + "@api.example.com", "file:/does/not/exist@api.example.com",
	}}, seams{})
	for name, row := range map[string]struct {
		url, header, want string
		good              bool
	}{
		"its host":           {"https://API.example.com./", "${env:HEADWAY_TEST_KEY}", "", false},
		"its port":           {"http://127.0.0.1:1/", "${env:HEADWAY_TEST_KEY}", "", false},
		"another host":       {"https://evil.example.com/?${env:HEADWAY_TEST_KEY}", "", "url: names the secret env:HEADWAY_TEST_KEY, which this worker does not give to that host; start it with -secret env:HEADWAY_TEST_KEY@HOST", true},
		"another's header":   {"https://evil.example.com/", "${env:HEADWAY_TEST_KEY}", `headers["X-Key"]: names the secret env:HEADWAY_TEST_KEY, which`, true},
		"userinfo of it":     {"https://api.example.com@evil.example.com/", "${env:HEADWAY_TEST_KEY}", "which this worker does not give", true},
		"another port":       {"http://127.0.0.1:2/", "${env:HEADWAY_TEST_KEY}", "which this worker does not give", true},
		"another variable":   {"https://api.example.com/", "${env:PATH}", "names the secret env:PATH, which", true},
		"another file":       {"https://api.example.com/", "${file:/etc/passwd}", "names the secret file:/etc/passwd, which", true},
		"in the clear":       {"http://api.example.com/", "${env:HEADWAY_TEST_KEY}", "a secret is sent by https alone where -secret names no port", true},
		"in the host":        {"https://${env:HEADWAY_TEST_KEY}.example.com/", "", "url: not a valid URL", true},
		"empty":              {"https://api.example.com/", "${env:HEADWAY_TEST_EMPTY}", "outbound: the worker's environment has no HEADWAY_TEST_EMPTY", false},
		"a missing file":     {"https://api.example.com/", "${file:/does/not/exist}", "outbound: the secret file:/does/not/exist cannot be read: ", false},
		"a file of too much": {"https://api.example.com/", "${file:" + large + "}", "is larger than 64 KiB", false},
	} {
		p := payload{URL: row.url, Headers: map[string]string{"X-Key": row.header}}
		_, err := h.parse(task(t, p).Payload(), "")
		var bad *PayloadError
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) || errors.As(err, &bad) != row.good {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && errors.Is(run(t, h, p), asynq.SkipRetry) != row.good {
			t.Errorf("%s: a task that fails for good, or one that does not", name)
		}
	}
}
