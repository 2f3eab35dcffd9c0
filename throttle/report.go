package throttle

import (
	"context"
	"net/http"
	"time"

	"github.com/headway-go/headway/internal/answers"
	"github.com/headway-go/headway/throttle/upstream"
)

// ReportResult is the effect of an answer: until when a scope is paused and which, and whether the answer was the first to report
// this.
type ReportResult = answers.Result

// UpstreamChange is a new effect of an API's answer, see Limiter.Report: What it is, the Scope, Rule and Pattern that it is
// about, the API's own Limit, and Until when it lasts. What is "pause", "cut" for a reduced rule, "limit" for the API's own
// limit, "rise" for a limit above the configured one, or "open" or "closed" for a breaker.
type UpstreamChange = answers.Change

// UpstreamEvent is a past UpstreamChange: what it was, At when it was reported, and which answer of a call of which scope made it.
type UpstreamEvent = answers.Event

// UpstreamState is what APIs have answered about a scope and the scopes above it, as far as it still applies: Pauses, outermost
// first, and Corrections, in the order of the rules. At is the Redis server's time.
type UpstreamState = answers.State

// UpstreamPause is a pause of a scope, and of the scopes below it, that an API's answer asked for. Guessed says that the API gave
// no duration.
type UpstreamPause = answers.Pause

// UpstreamBreaker is the breaker of a scope that is open: Since when, when the Next probe may go, how many are Probing, and how many
// Calls and Failures opened it.
type UpstreamBreaker = answers.Breaker

// CallResult is what is known of the breakers on a scope's path after a call: Until when one is open, and whether a task whose
// call failed keeps its attempt.
type CallResult = answers.CallResult

// Correction is the limit that applies in place of a rule's configured one: Limit until Until, which is Part of the configured
// limit, in millionths, or the API's Own. Bound is the rule as configured.
type Correction = answers.Correction

// newReporter returns what applies APIs' answers to the limits of l.
func (l *Limiter) newReporter() *answers.Reporter {
	return answers.New(answers.Config{
		Redis: l.rdb, Scopes: l.scopes, Base: l.cfg.Prefix, Timeout: l.cfg.Timeout, Tolerance: l.cfg.StartTolerance,
		Logger: l.cfg.Logger, Clock: func() string { return l.clock() }, Now: l.serverTime, Wake: l.list.Wake,
		OnChange: func(c UpstreamChange) {
			if l.cfg.Observer != nil {
				l.cfg.Observer.Upstream(c)
			}
		},
	})
}

// ReadAnswer reads the status and the header of an API's answer to a call that spent from a scope, for Report: as upstream.Read,
// and by the policy's Reading of the scope. It does no I/O.
func (l *Limiter) ReadAnswer(scope string, status int, header http.Header, now time.Time) upstream.Hint {
	return l.readerOf(scope).Read(status, header, now)
}

// ReadResponse is ReadAnswer for a whole answer. It looks at the first 4 KiB of the body if the Reading asks for that, and leaves
// the body as it was. It waits for these bytes. The host is that of the answer's Request. What a host that the policy does not list
// says of costs and of usage is left out: it could give units back.
func (l *Limiter) ReadResponse(scope string, resp *http.Response, now time.Time) upstream.Hint {
	hint := l.readerOf(scope).ReadResponse(resp, now)
	if p, err := l.plan(scope); err == nil && (len(hint.Costs) > 0 || hint.Usage) && !l.Policy().Hears(p.Scope.Scope, hint.Host) {
		hint.Costs, hint.Usage = nil, false
	}
	return hint
}

func (l *Limiter) readerOf(scope string) upstream.Reader {
	p, err := l.plan(scope)
	if err != nil {
		return upstream.Reader{}
	}
	return l.Policy().Reader(p.Scope.Scope)
}

// Report applies what an API's answer says about its limits to all that spend from a scope and from the scopes below it, in every
// process: nothing starts there before the API accepts calls again. Other scopes go on.
//
// A refusal pauses the scope for the time that it gives. Without such a time, it pauses the scope for a second, or as Refusals of
// the policy says, and for twice as long after each further refusal that follows soon, up to five minutes; then one call goes
// first, and the others follow once it is reported with an answer that is no refusal. Any other answer that leaves no request
// pauses the scope until requests are available again. No answer pauses a scope for longer than 24 hours.
//
// Rules are corrected at the scope's own level, and at levels above it whose Answers say heed: one tenant's answers do not slow
// others unless the policy says so. A refusal reduces the limits of the rules at the lowest of these levels that has any by 15 %,
// but never below a tenth of the configured limit. They grow back by 2 % in each window, or as Corrects of the policy says. If
// the API's own limit is smaller than the lowest rule of the same unit and window, it replaces that rule's limit until an answer
// says otherwise, or for an hour. Only the policy lets limits grow above the configured ones.
//
// Programs that call APIs themselves call it with every answer. An answer that says nothing new to this process costs nothing; any
// other costs one round trip, and one more if it changed something. Where limits may grow, an answer that neither refuses nor
// fails costs one too, once in half an hour. Report does nothing if the scope meets no rule, or if Answers or Hosts of the policy say so. It runs
// even if ctx has ended. The error is a *policy.ScopeError or *policy.UnmatchedError, or wraps ErrUnavailable.
// Source: docs/vendor.md#pauses
func (l *Limiter) Report(ctx context.Context, scope string, a upstream.Hint) (ReportResult, error) {
	return l.reports.Report(ctx, scope, a)
}

// ReportCall reports how a call has ended that spent a grant, for the breakers on its path: failed says that it got no answer (a
// connection error, a time-out) or a 5xx that asks for no pause. A 429 and other 4xx are no failures. If the call was the probe of a
// breaker that is open, a success closes that, and a failure opens it for twice as long.
//
// A call of a scope without breakers costs nothing. The calls of all scopes of a provider are reported together: failures at once, but
// ten times a second at most, and successes after a tenth of the breaker's In, in one round trip for each hundred levels. A probe costs
// a round trip of its own. It runs even if ctx has ended. The error wraps ErrUnavailable; what was counted is then lost, which opens
// nothing. Source: docs/breaker.md
func (l *Limiter) ReportCall(ctx context.Context, g Grant, failed bool) (CallResult, error) {
	if g.Zero() || g.local || g.plan == nil {
		return CallResult{}, nil
	}
	p, err := l.planOf(g)
	if err != nil {
		return CallResult{}, nil //nolint:nilerr // a scope that no rule counts any more
	}
	call := answers.Call{Scope: p.Scope, Failed: failed, Sent: g.from}
	if g.probe {
		call.Lease = g.id
	}
	return l.reports.Called(ctx, call)
}

// OpenBreaker opens the breaker of a scope by hand. Its first probe goes after the given time, at most LongestOpen, or after the
// breaker's own wait if that is 0. One that is open waits anew. Costs two round trips. The error wraps policy.ErrNoBreaker if the policy has
// none at the scope's own level; other errors are those of Report.
func (l *Limiter) OpenBreaker(ctx context.Context, scope string, wait time.Duration) error {
	p, err := l.plan(scope)
	if err != nil {
		return err
	}
	if _, err := l.Policy().BreakerAt(p.Scope.Scope); err != nil {
		return err
	}
	return l.reports.OpenBreaker(ctx, p.Scope, min(wait, LongestOpen))
}

// LongestOpen is how long a breaker that was opened by hand waits at most before its first probe. Pause a scope for longer.
const LongestOpen = 24 * time.Hour

// CloseBreaker closes the breaker of a scope by hand, and ends a pause that an API has asked for at its level, such as the quarantine
// of a pool's member. After a breaker, its rules count a tenth of their limits at first, as after a probe. Costs one round trip. Its
// errors are those of Report.
func (l *Limiter) CloseBreaker(ctx context.Context, scope string) error {
	p, err := l.plan(scope)
	if err != nil {
		return err
	}
	return l.reports.CloseBreaker(ctx, p.Scope)
}

// ResetUpstream ends the pause of a scope, closes its breaker, and ends all corrections of the rules at its level. Waiters that they
// held up are dispatched at once. Scopes above and below it keep their pauses and corrections. Costs one round trip. Its errors are
// those of Report.
func (l *Limiter) ResetUpstream(ctx context.Context, scope string) error {
	p, err := l.plan(scope)
	if err != nil || len(p.Rules) == 0 {
		return err
	}
	return l.reports.Reset(ctx, p.Scope, "")
}

// UpstreamState returns what applies at a scope. Costs one round trip. Its errors are those of Report.
func (l *Limiter) UpstreamState(ctx context.Context, scope string) (UpstreamState, error) {
	return l.reports.State(ctx, scope)
}

// UpstreamBelow returns what APIs have answered about all scopes of a provider, as far as it still applies, in no order. It reads
// about 1000 entries; more says that there are others. Costs one round trip. Its errors are those of Report.
func (l *Limiter) UpstreamBelow(ctx context.Context, provider string) (out UpstreamState, more bool, err error) {
	return l.reports.Below(ctx, provider)
}

// UpstreamEvents returns the past changes that APIs' answers made at a scope and the scopes above it, newest first: the last 20 of
// each level, until a day after its newest. Costs one round trip, with one command for each level. Its errors are those of Report.
func (l *Limiter) UpstreamEvents(ctx context.Context, scope string) ([]UpstreamEvent, error) {
	return l.reports.Events(ctx, scope)
}
