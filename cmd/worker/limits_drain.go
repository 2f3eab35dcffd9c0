package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
)

// drainReport is what drain prints at its end; docs/json.md has its fields.
type drainReport struct {
	Scope    string `json:"scope"`
	Drained  bool   `json:"drained"`
	Running  int    `json:"running"`
	WaitedMS int64  `json:"waited_ms"`
}

const (
	drainLook   = 500 * time.Millisecond
	drainPrints = 5 * time.Second // how often it is printed that nothing has changed
	// drainGrace is how long after a pause a start may come that was granted before, and more.
	drainGrace = 500 * time.Millisecond
)

// drain pauses a scope and waits until its tasks have ended. Whatever ends the wait, the pause stays.
func (l *limitsCommand) drain(ctx context.Context, words []string) error {
	began, scope := time.Now(), words[0]
	if strings.Contains(scope, "//") {
		return cli.Errorf("worker limits pause "+cli.Quote(scope), "%s is a tier, and which names are in it only a worker knows; drain takes a scope, or payments/*", cli.Quote(scope))
	}
	service, err := l.service(ctx)
	if err != nil {
		return err
	}
	done, err := service.Apply(ctx, l.actor(), l.with(control.Change{Verb: control.VerbDrain, Scope: scope}))
	switch {
	case errors.Is(err, policystore.ErrUnchanged): // it is paused for good already
	case err != nil:
		return err
	default:
		l.printMade(ctx, done)
	}
	waits := ctx
	if l.timeout > 0 {
		var cancel context.CancelFunc
		waits, cancel = context.WithTimeout(ctx, l.timeout)
		defer cancel()
	}
	d := drained{scope: scope, policy: done.Policy, inspector: asynq.NewInspectorFromRedisClient(l.rdb)}
	left, err := l.wait(waits, &d, done.Version)
	r := drainReport{scope, err == nil, left, time.Since(began).Milliseconds()}
	name := cli.Quote(scope)
	switch {
	case err == nil:
		l.out.Print(r, "no task of "+name+" runs; it stays paused until worker limits resume "+name)
	case ctx.Err() != nil:
		return cli.Errorf("worker limits resume "+name, "interrupted; %s stays paused", name)
	case waits.Err() != nil:
		if l.json {
			l.out.Print(r, "")
		}
		return cli.Errorf("worker limits drain "+name+" again, or worker limits resume "+name,
			"%s after %s; %s stays paused", stillRun(left, name), l.timeout, name)
	}
	return err
}

func stillRun(n int, scope string) string {
	return cli.Count(n, "task of "+scope+" still runs", "tasks of "+scope+" still run")
}

// wait waits until those have ended that ran when the pause had come into force. It returns how many still run when ctx ends.
func (l *limitsCommand) wait(ctx context.Context, d *drained, v policystore.Version) (left int, err error) {
	in, err := l.store().InForceIn(ctx, v)
	if err != nil {
		return 0, err
	}
	if !rest(ctx, in+drainGrace) {
		_ = d.look() // for what is printed
		return len(d.running), ctx.Err()
	}
	printed, last := -1, time.Time{}
	for {
		if err := d.look(); err != nil {
			return len(d.running), err
		}
		left := len(d.running)
		if left == 0 {
			return 0, nil
		}
		if left != printed || time.Since(last) >= drainPrints {
			printed, last = left, time.Now()
			_, _ = fmt.Fprintf(l.errs, "worker limits drain: %s\n", stillRun(left, cli.Quote(d.scope)))
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
	if !policy.Within(d.scope, scope) {
		return false
	}
	s, err := policy.ParseScope(scope)
	if err != nil {
		return false
	}
	bounds, _ := d.policy.Match(s) // no rule is no pause
	return slices.ContainsFunc(bounds, policy.MatchedRule.Paused)
}
