package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/headway-go/headway/test/redistest"
)

func TestFail(t *testing.T) {
	t.Parallel()
	full := Errorf("make room", "Redis at %s is full", "h:1")
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"plain":       {errors.New("broken"), "p: broken\n"},
		"what try":    {full, "p: Redis at h:1 is full\ntry: make room\n"},
		"without try": {Errorf("", "broken"), "p: broken\n"},
		"wrapped":     {fmt.Errorf("publish: %w", full), "p: publish: Redis at h:1 is full\ntry: make room\n"},
		"joined":      {errors.Join(errors.New("a"), full, errors.New("b")), "p: a\np: Redis at h:1 is full\ntry: make room\np: b\n"},
		"lines":       {errors.New("l.yaml:1: a\nl.yaml:2: b"), "p: l.yaml:1: a\np: l.yaml:2: b\n"},
		"hostile": {errors.Join(errors.New("a"+hostile), Errorf("d"+hostile, "b\nc"+hostile)),
			"p: a" + escaped + "\np: b\np: c" + escaped + "\ntry: d" + escaped + "\n"},
		"two wrapped": {fmt.Errorf("%w: %w", errors.New("a"), errors.New("b")), "p: a: b\n"},
	} {
		var got bytes.Buffer
		Fail(&got, "p", tt.err)
		if got.String() != tt.want {
			t.Errorf("%s: got %q, want %q", name, got.String(), tt.want)
		}
	}
}

func TestOutput(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	o := Output{W: &out}
	o.Print(1, "a"+hostile+"\nb")
	o.Table([]string{"HEAD", "X"}, [][]string{{"longer" + hostile, "y"}})
	o.JSON = true
	o.Print(map[string]string{"a<": "\u202e"}, "none")
	want := "a" + escaped + "\nb\n" + "HEAD" + strings.Repeat(" ", len([]rune("longer"+escaped))-2) + "X\nlonger" + escaped + "  y\n" + `{"a<":"\u202e"}` + "\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	if Count(1, "task", "tasks")+Count(2, "task", "tasks") != "1 task2 tasks" || Version() == "" {
		t.Error("a count or the version")
	}
}

var must = redistest.Must

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
