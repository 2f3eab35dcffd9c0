package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
)

// hostile has what must not reach a terminal: escapes, a title, C1 controls as UTF-8 and as a byte,
// DEL, characters that change the direction of text, and one beyond 16 bits.
const hostile = "a\x1b[2J\x1b]0;x\a\r\u009b31m\x9b\x7f\u202e\u2066\u200f\u2028\U000e0041ü…"

const escaped = `a\x1b[2J\x1b]0;x\a\r\u009b31m\x9b\x7f\u202e\u2066\u200f\u2028\U000e0041ü…`

func clean(t *testing.T, text string) {
	t.Helper()
	for i, r := range text {
		if r != '\n' && !unicode.IsPrint(r) || r == unicode.ReplacementChar && !strings.HasPrefix(text[i:], string(r)) {
			t.Errorf("%+q has %U", text, r)
			return
		}
	}
}

func TestEscape(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                  "",
		"plain – ü 漢 \\x1b": "plain – ü 漢 \\x1b",
		"a\nb\tc":           `a\nb\tc`,
		hostile:             escaped,
		"�\xff":             `�\xff`,
	} {
		got := Escape(text)
		clean(t, got)
		if got != want || Escape(got) != got {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
	if got := EscapeLines("a\x1b\nb\r\n"); got != "a\\x1b\nb\\r\n" {
		t.Errorf("%q", got)
	}
	for text, want := range map[string]string{"": `""`, "a b": "a b", "a\nb": `"a\nb"`, "\u202e": `"\u202e"`} {
		if got := Quote(text); got != want {
			t.Errorf("%q became %s, want %s", text, got, want)
		}
	}
	if got := Quote(strings.Repeat("ü", 1000)); len(got) > 310 || !strings.HasSuffix(got, "ü…") {
		t.Errorf("%q", got)
	}
}

func TestEscapeJSON(t *testing.T) {
	t.Parallel()
	valid := strings.ToValidUTF8(hostile, "")
	text, err := json.Marshal(valid)
	must(t, err)
	got := EscapeJSON(append(text, '\n'))
	clean(t, string(got))
	var back string
	if err := json.Unmarshal(got, &back); err != nil || back != valid {
		t.Errorf("%s became %q, %v", got, back, err)
	}
	if plain := []byte(`{"a":"b ü"}` + "\n"); string(EscapeJSON(plain)) != string(plain) {
		t.Error("changed what was printable")
	}
}
