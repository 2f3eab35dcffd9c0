package queue

import (
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/throttle/policy"
)

// PlannedWait is what was known of a task's wait for its limits when it was enqueued.
type PlannedWait struct {
	// Ahead is the number of waiters of its scope that were before it; -1 if unknown.
	Ahead int64
	// Rule is the rule that it waited for, with its place in the policy: payments/*:tenant. Level is the
	// level of the task's scope at which the rule counts: payments/acme. Both are empty if no rule is known.
	Rule, Level string
	// Start is the expected start; zero if unknown.
	Start time.Time
}

// noteWait notes in a task's headers what is known of its wait.
func (r *Result) noteWait(headers map[string]string) {
	if !r.Start.IsZero() {
		headers[HeaderExpected] = r.Start.UTC().Format(time.RFC3339Nano)
	}
	if r.Ahead < 0 {
		return
	}
	text := strconv.FormatInt(r.Ahead, 10)
	if rule := r.WaitsFor; rule != nil {
		level := strings.Count(rule.Scope, "/") + 1
		text += " " + strconv.Itoa(level) + " " + rule.Pattern + ":" + rule.Rule
	}
	headers[HeaderWaitsFor] = text
}

// ReadPlannedWait reads HeaderExpected and HeaderWaitsFor of a task. It returns false if the task has neither. It reports no
// errors, since nothing depends on these headers: values that this package cannot have written count as absent.
func ReadPlannedWait(t *asynq.Task) (w PlannedWait, ok bool) {
	headers := t.Headers()
	w.Ahead = -1
	if at, err := time.Parse(time.RFC3339Nano, headers[HeaderExpected]); err == nil {
		w.Start, ok = at.UTC(), true
	}
	ahead, rest, named := strings.Cut(headers[HeaderWaitsFor], " ")
	n, err := strconv.ParseUint(ahead, 10, 63)
	if err != nil {
		return w, ok
	}
	w.Ahead = int64(n)
	levels, rule, _ := strings.Cut(rest, " ")
	scope, err := policy.ParseScope(headers[HeaderScope])
	if level, bad := strconv.Atoi(levels); named && err == nil && bad == nil && level > 0 && level <= scope.Len() {
		w.Rule, w.Level = rule, scope.Prefix(level).String()
	}
	return w, true
}
