// Package planted puts faults into the scripts on their way to Redis, so that a test can show that it finds them.
package planted

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/test/redistest"
)

// New returns the hook of a client that writes to in place of from in every script that has it.
func New(from, to string) redis.Hook {
	changed := map[string]string{} // texts and hashes
	for _, s := range lua.All() {
		if text := strings.ReplaceAll(s.Source(), from, to); text != s.Source() {
			changed[s.Source()], changed[s.SHA()] = text, redis.NewScript(text).Hash()
		}
	}
	return redistest.Around{Before: func(cmd redis.Cmder) {
		args := cmd.Args() // eval TEXT, evalsha SHA, script load TEXT
		for i := 1; i < min(len(args), 3); i++ {
			text, _ := args[i].(string)
			if to, ok := changed[text]; ok {
				args[i] = to
			}
		}
	}}
}

// HasPlaces fails the test for each text that no script has any more: a fault that was to be put there would change
// nothing. It takes a moment, and the tests that seek the faults minutes.
func HasPlaces(t *testing.T, texts ...string) {
	t.Helper()
	var scripts strings.Builder
	for _, s := range lua.All() {
		scripts.WriteString(s.Source())
	}
	for _, text := range texts {
		if !strings.Contains(scripts.String(), text) {
			t.Errorf("no script holds %q any more", text)
		}
	}
}

// Sought skips the test unless HISTORY_FAULTS is set, as make histories does.
func Sought(t *testing.T) {
	t.Helper()
	if os.Getenv("HISTORY_FAULTS") == "" {
		t.Skip("takes minutes: make histories")
	}
}

// Drawn draws which faults are sought: one, at random, of as many as HISTORY_FAULTS says.
func Drawn(t *testing.T) bool {
	t.Helper()
	of, err := strconv.Atoi(os.Getenv("HISTORY_FAULTS"))
	if err != nil || of < 1 {
		t.Fatalf("HISTORY_FAULTS=%q is no number above 0", os.Getenv("HISTORY_FAULTS"))
	}
	return rand.IntN(of) == 0
}
