package worker

import (
	"testing"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/asynqx"
	"github.com/headway-go/headway/worker/internal/dispatch"
)

// The last error that asynq keeps of a task says that its scope is paused.
func TestLimitedByAPause(t *testing.T) {
	t.Parallel()
	for rule, want := range map[string]string{
		policy.PausedRule: "headway: waiting: p/a is paused", "tenant": "headway: waiting: p/a, rule tenant", "": "headway: waiting: p/a",
	} {
		if got := newLimited(&job{scope: "p/a"}, rule, time.Now()).Error(); got != want || !asynqx.IsWaiting(got) {
			t.Errorf("%q: got %q, want %q", rule, got, want)
		}
	}
}

// "Under a pause without an end" a backlog doesn't come each minute.
func TestSafetyNetOfAPause(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		paused      bool
		expected    time.Duration
		least, most time.Duration
	}{
		"a pause":          {true, throttle.Never, pausedNet, pausedNet * 3 / 2},
		"one that ends":    {true, time.Hour, time.Hour, time.Hour + 31*time.Minute},
		"a suspended rule": {false, throttle.Never, time.Minute, time.Minute},
	} {
		d := throttle.Decision{Rules: []throttle.RuleState{{RuleInfo: &throttle.RuleInfo{Paused: tt.paused}}}, Position: throttle.QueuePosition{Waits: true, Expected: tt.expected}}
		if got := (&Middleware{dispatcher: new(dispatch.Dispatcher)}).safetyNet(d); got < tt.least || got > tt.most {
			t.Errorf("%s: %s, want %s to %s", name, got, tt.least, tt.most)
		}
	}
}
