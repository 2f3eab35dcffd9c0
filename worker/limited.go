package worker

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// Limited is the error with which a handler hands a limited task back to asynq. It is no failure: a server of NewServer counts none, and
// brings the task back at At. Only a Tracer sees it.
type Limited struct {
	// Scope is what the task spends from. Rule is the binding rule, if there is one.
	Scope, Rule string
	// At is when the task comes back.
	At time.Time

	text string
}

// The texts that follow the scope in the text of a Limited.
const (
	pausedText = " is paused"
	ruleText   = ", rule "
)

// Error returns the text that asynq keeps as the task's last error. For a task that has failed before,
// it is the text of that failure, which asynq would otherwise overwrite.
func (e *Limited) Error() string { return e.text }

func newLimited(j *job, rule string, at time.Time) *Limited {
	e := &Limited{Scope: j.scope, Rule: rule, At: at}
	e.text = fmt.Sprintf("%s: %s", asynqx.WaitingText, j.scope)
	switch rule {
	case "":
		if j.why != "" {
			e.text = asynqx.WaitingText + ": " + j.why
		}
	case policy.PausedRule:
		e.text += pausedText
	default:
		e.text += ruleText + rule
	}
	return e
}

// WaitingScope returns the scope in the last error that asynq keeps of a waiting task, also if the scope came from Config.Spends.
// is is false for any other text, and for a task that has failed before: its last error is that failure.
func WaitingScope(lastErr string) (scope string, is bool) {
	scope, is = strings.CutPrefix(lastErr, asynqx.WaitingText+": ")
	if !is || strings.HasPrefix(scope, unscopedText) {
		return "", false
	}
	if refused, of := refusedScope(scope); of {
		scope = refused
	} else if scope, is = strings.CutSuffix(scope, pausedText); !is {
		if at := strings.LastIndex(scope, ruleText); at >= 0 {
			scope = scope[:at]
		}
	}
	_, err := policy.ParseScope(scope)
	return scope, err == nil
}

// refusedScope returns the scope in the text of a refusal: scope "p/a" meets no rule, or scope "p/a": why.
func refusedScope(why string) (scope string, is bool) {
	rest, is := strings.CutPrefix(why, "scope ")
	if !is {
		return "", false
	}
	quoted, err := strconv.QuotedPrefix(rest)
	if rest = rest[len(quoted):]; err != nil || !strings.HasPrefix(rest, ":") && !strings.HasPrefix(rest, " meets") {
		return "", false
	}
	scope, err = strconv.Unquote(quoted)
	return scope, err == nil
}

// AsLimited returns the Limited that err is or wraps, if there is one.
func AsLimited(err error) (*Limited, bool) {
	var e *Limited
	return e, errors.As(err, &e)
}

// Retrier is an error that knows when to retry its task, such as an answer with a Retry-After.
// Servers of NewServer follow it, and never retry earlier.
type Retrier interface {
	error
	RetryIn() (wait time.Duration, known bool)
}

// Deferrer is an error of a run that is no failure: the called API says that it is limited itself. The task comes back after the
// wait, or after about ten seconds if the wait is unknown. It uses up no attempt, at any max retry; what the run has spent stays
// spent. A max_wait and MiddlewareConfig.MaxDeferrals bound how often that repeats.
type Deferrer interface {
	error
	DeferBy() (wait time.Duration, known, deferred bool)
}

// deferPause is after how long a task comes back whose API names no time. Up to a tenth more is added at random, to spread tasks.
const deferPause = 10 * time.Second

// deferredBy returns after how long a task comes back that its API has deferred.
func deferredBy(err error) (wait time.Duration, deferred bool) {
	var asks Deferrer
	if err == nil || !errors.As(err, &asks) {
		return 0, false
	}
	wait, known, deferred := asks.DeferBy()
	if !known {
		wait = deferPause + rand.N(deferPause/10)
	}
	return wait, deferred
}

// delay returns how long asynq must wait so that a task is not early: asynq stores whole seconds, rounded down.
func delay(at, now time.Time) time.Duration {
	return max(time.Unix(asynqx.SecondAtOrAfter(at), 0).Sub(now), 0) + time.Millisecond
}

// permanent makes err fail the task for good, however many retries it has left.
func permanent(err error) error {
	if errors.Is(err, asynq.SkipRetry) {
		return err
	}
	return &finalError{err}
}

// finalError has the text of its error, without asynq's.
type finalError struct{ err error }

func (e *finalError) Error() string   { return e.err.Error() }
func (e *finalError) Unwrap() []error { return []error{e.err, asynq.SkipRetry} }
