package cli

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

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
