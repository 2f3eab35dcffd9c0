// Package planted puts faults into the scripts on their way to Redis, so that a test can show that it finds them.
package planted

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
)

// Hook is a client's hook that puts a fault into every script that has its place.
type Hook struct{ texts, hashes map[string]string }

// New returns the hook of the fault that writes to in place of from.
func New(from, to string) Hook {
	h := Hook{texts: map[string]string{}, hashes: map[string]string{}}
	for _, s := range lua.All() {
		if text := strings.ReplaceAll(s.Source(), from, to); text != s.Source() {
			h.texts[s.Source()], h.hashes[s.SHA()] = text, redis.NewScript(text).Hash()
		}
	}
	return h
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

func (h Hook) change(cmd redis.Cmder) {
	args := cmd.Args() // eval TEXT, evalsha SHA, script load TEXT
	for i := 1; i < min(len(args), 3); i++ {
		text, _ := args[i].(string)
		for _, of := range []map[string]string{h.texts, h.hashes} {
			if to, ok := of[text]; ok {
				args[i] = to
			}
		}
	}
}

// DialHook changes nothing.
func (h Hook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook changes the script of a command.
func (h Hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.change(cmd)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook changes the scripts of a pipeline.
func (h Hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h.change(cmd)
		}
		return next(ctx, cmds)
	}
}
