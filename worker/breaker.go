package worker

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// CallFailer is an error of a run that says by itself whether a call got no answer, or an answer that is a failure of the API, as
// those of package outbound do. See docs/breaker.md.
type CallFailer interface {
	error
	CallFailed() bool
}

// called reports how a call of the run has ended.
func (r *taskRun) called(ctx context.Context, failed bool) {
	if r.grant.Zero() {
		return
	}
	out, err := r.m.cfg.Limiter.ReportCall(ctx, r.grant, failed)
	if err != nil {
		r.m.observer.Failed("report")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counted = true
	if failed {
		r.failed = out
	}
}

// answered reports an answer, unless a policy says that the answers of its host mean nothing.
func (r *taskRun) answered(ctx context.Context, hint upstream.Hint) {
	pol := r.m.cfg.Limiter.Policy()
	if !pol.Breaks() {
		return
	}
	scope, err := policy.ParseScope(r.job.scope)
	if err != nil {
		return
	}
	if pol.Hears(scope, hint.Host) {
		r.called(ctx, hint.Failed)
	}
}

// ended reports a run whose handler has reported no call: one that succeeded made none that failed, and another failed call shows in
// its error. Of any other error it is not known what the API did.
func (r *taskRun) ended(ctx context.Context, err error) {
	r.mu.Lock()
	known := r.counted
	r.mu.Unlock()
	if known {
		return
	}
	if failed := err != nil && r.m.callFailed(err); failed || err == nil {
		r.called(ctx, failed)
	}
}

func (m *Middleware) callFailed(err error) bool {
	if says, is := errors.AsType[CallFailer](err); is {
		return says.CallFailed()
	}
	return m.cfg.CallFailed != nil && m.cfg.CallFailed(err)
}

// keepsAttempt returns after how long a task comes back whose call failed under a breaker with retry: false: when the breaker lets a
// probe go, or soon if it is not open, as the next failures may open it, or if another member of a pool may do it. The task goes to the
// end of its line: one whose calls alone fail must not be each probe.
func (r *taskRun) keepsAttempt(err error) (wait time.Duration, keeps bool) {
	r.mu.Lock()
	failed := r.failed
	r.mu.Unlock()
	if err == nil || !failed.KeepsAttempt || errors.Is(err, asynq.SkipRetry) || errors.Is(err, asynq.RevokeTask) {
		return 0, false
	}
	switch wait = max(0, time.Until(failed.Until)); {
	case r.grant.Member() != "":
		wait = 0
	case wait == 0:
		wait = deferPause
	}
	return wait + rand.N(deferPause/10), true
}
