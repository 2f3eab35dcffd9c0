package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
)

func (c *limitsCommand) pause(ctx context.Context) error {
	return c.apply(ctx, control.Change{Verb: control.VerbPause, Scope: c.words[0]})
}

func (c *limitsCommand) resume(ctx context.Context) error {
	return c.apply(ctx, control.Change{Verb: control.VerbResume, Scope: c.words[0]})
}

// drainReport is what drain prints at its end; docs/json.md has its fields.
type drainReport struct {
	Scope    string `json:"scope"`
	Drained  bool   `json:"drained"`
	Running  int    `json:"running"`
	WaitedMS int64  `json:"waited_ms"`
}

const (
	drainLook = 500 * time.Millisecond
	drainTell = 5 * time.Second // how often it is printed that nothing has changed
	// drainGrace is how long after a pause a start may come that was granted before, and more.
	drainGrace = 500 * time.Millisecond
)

// drain pauses a scope and waits until its tasks have ended. Whatever ends the wait, the
// pause stays.
func (c *limitsCommand) drain(ctx context.Context) error {
	began := time.Now()
	made, err := c.change(ctx, control.Change{Verb: control.VerbDrain, Scope: c.words[0]})
	switch {
	case errors.Is(err, policystore.ErrUnchanged): // it is paused for good already
	case err != nil:
		return err
	default:
		if err := c.tell(ctx, made, nil); err != nil {
			return err
		}
	}
	waits := ctx
	if c.timeout > 0 {
		var cancel context.CancelFunc
		waits, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	}
	d := drained{scope: c.words[0], policy: made.Policy, inspector: asynq.NewInspectorFromRedisClient(c.rdb)}
	left, err := c.wait(waits, &d, made.Version)
	r := drainReport{c.words[0], err == nil, left, time.Since(began).Milliseconds()}
	name := cli.Quote(r.Scope)
	switch {
	case err == nil:
		return c.print(r, "no task of "+name+" runs; it stays paused until worker limits resume "+name)
	case ctx.Err() != nil:
		_, _ = fmt.Fprintf(c.errs, "%s: interrupted; %s stays paused until worker limits resume %s\n", prog, name, name)
		return err
	case waits.Err() != nil:
		if err := c.printJSON(r); err != nil {
			return err
		}
		return cli.Errorf("worker limits drain "+name+" again, or worker limits resume "+name,
			"%s after %s; %s stays paused", stillRun(left, name), c.timeout, name)
	}
	return err
}

// printJSON writes an object for programs, and nothing for people.
func (c *limitsCommand) printJSON(object any) error {
	if !c.json {
		return nil
	}
	return c.print(object, "")
}

func stillRun(n int, scope string) string {
	if n == 1 {
		return "1 task of " + scope + " still runs"
	}
	return fmt.Sprintf("%d tasks of %s still run", n, scope)
}

// wait waits until those have ended that ran when the pause had come into force. It returns
// how many still run when ctx ends.
func (c *limitsCommand) wait(ctx context.Context, d *drained, v policystore.Version) (left int, err error) {
	in, err := c.store.InForceIn(ctx, v)
	if err != nil {
		return 0, err
	}
	if !rest(ctx, in+drainGrace) {
		_ = d.look() // for what is printed
		return d.count(), ctx.Err()
	}
	told, last := -1, time.Time{}
	for {
		if err := d.look(); err != nil {
			return d.count(), explain(ctx, err, c.url)
		}
		left := d.count()
		if left == 0 {
			return 0, nil
		}
		if left != told || time.Since(last) >= drainTell {
			told, last = left, time.Now()
			_, _ = fmt.Fprintf(c.errs, "%s: %s\n", prog, stillRun(left, cli.Quote(d.scope)))
		}
		if !rest(ctx, drainLook) {
			return left, ctx.Err()
		}
	}
}

// rest waits, and reports false when ctx ended first.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// drained are the tasks of a paused scope that ran when it was first looked at, and still
// do. Others that are with a worker have come since, and only to be put back.
type drained struct {
	scope     string
	policy    *policy.Policy
	inspector *asynq.Inspector
	running   map[waitlist.Ref]bool // nil before the first look
}

func (d *drained) count() int { return len(d.running) }

func (d *drained) look() error {
	active, err := control.ActiveTasks(d.inspector, d.pauses)
	if err != nil {
		return err
	}
	still := map[waitlist.Ref]bool{}
	for task := range active {
		if d.running == nil || d.running[task] {
			still[task] = true
		}
	}
	d.running = still
	return nil
}

// pauses reports whether a scope is at or under the one that is drained, and paused: one name
// of those that "*" stands for may be excepted.
func (d *drained) pauses(scope string) bool {
	names, at := strings.Split(scope, "/"), strings.Split(d.scope, "/")
	if len(names) < len(at) {
		return false
	}
	for i, name := range at {
		if name != "*" && name != names[i] {
			return false
		}
	}
	s, err := policy.ParseScope(scope)
	if err != nil {
		return false
	}
	bounds, _ := d.policy.Match(s) // no rule is no pause
	for _, b := range bounds {
		if b.Paused() {
			return true
		}
	}
	return false
}

func setOrPaused(o policystore.Override) string {
	switch {
	case o.Resumed():
		return "resumed"
	case o.Name == policystore.PausedField:
		return "paused"
	}
	return "set"
}

// pauseReports is what list says of a node's pause, if there is anything to say.
func pauseReports(v policystore.Version, path string, n policy.ScopeConfig, now time.Time) []ruleReport {
	if n.Pause == policy.PauseInherited {
		return nil
	}
	return []ruleReport{pauseReport(v, path, n, now)}
}

// pauseReport says who paused a node, or resumed it.
func pauseReport(v policystore.Version, path string, n policy.ScopeConfig, now time.Time) ruleReport {
	r := origin(v, path, policy.PausedRule, "paused: "+string(n.Pause), now)
	if p, live := v.Override(path, policystore.PausedField, now); live {
		r.From = "set"
		r.CreatedAt, r.UpdatedBy, r.UpdatedUser, r.UpdatedAt = stamp(p.CreatedAt), p.UpdatedBy, p.UpdatedUser, stamp(p.UpdatedAt)
		r.Reason = p.Reason
	}
	r.Until = stamp(n.PausedUntil)
	return r
}

func (r ruleReport) pauseLine() string {
	line := cli.Quote(r.Scope) + " paused"
	if r.Text != "paused: "+string(policy.PauseOn) {
		line = cli.Quote(r.Scope) + " not paused"
	}
	if r.Until != "" {
		line += " until " + r.Until
	}
	line += "  # " + r.From
	if r.UpdatedBy != "" {
		line += " by " + author(r.UpdatedBy, r.UpdatedUser) + " at " + r.UpdatedAt
	}
	if r.CreatedAt != "" && r.CreatedAt != r.UpdatedAt {
		line += ", since " + r.CreatedAt
	}
	return line + reasonText(r.Reason)
}
