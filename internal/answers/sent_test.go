package answers

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// The probe of a pool's member is forgotten with an answer for the member, whether its path has rules of its own or not.
func TestProbeOfAMemberIsForgotten(t *testing.T) {
	t.Parallel()
	rule := []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: 9, Per: sec}}
	pol, err := policy.New(policy.UnmatchedAllow, map[string]policy.ScopeConfig{"github": {
		Pool:   policy.Pool{Members: []policy.Member{{Name: "alice"}}},
		Scopes: map[string]policy.ScopeConfig{"acme": {Rules: rule}, "@*": {Rules: rule}},
	}})
	must := redistest.Must
	must(t, err)
	now := func(string) time.Time { return time.Now() }
	r := New(Config{
		Redis: redistest.Client(t), Timeout: redistest.Stretch(sec), Logger: slog.New(slog.DiscardHandler), Clock: func() string { return "" }, Now: now,
		Scopes: wire.NewScopes(pol, wire.Compiler{Base: redistest.Prefix(t)}, now, func(*wire.Scope, *policy.Policy) any { return nil }),
		Wake:   func(string) {}, OnChange: func(Change) {},
	})
	for i, path := range []string{"github/bare", "github/acme", "github/bare", "github/acme"} {
		s, err := r.cfg.Scopes.Of(path)
		must(t, err)
		r.Probe(s.With(s.Pool.Member("alice")), time.Now())
		_, err = r.Report(t.Context(), "github/@alice", upstream.Hint{Limited: i > 1, Sent: time.Now()})
		if must(t, err); r.probing.Load() || len(r.probes) > 0 {
			t.Errorf("%d: %v is still known", i, r.probes)
		}
	}
}
