package queue

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// The task headers that carry a task's scope, cost and retry limits. asynq keeps headers through every
// retry. A program that enqueues with asynq itself may set only HeaderScope and HeaderCost.
const (
	HeaderScope    = "headway-scope"     // the path of names
	HeaderCost     = "headway-cost"      // whole number >= 1, or by unit "requests=1,tokens=1500"; absent: 1
	HeaderMaxRetry = "headway-max-retry" // whole number >= 0; absent: asynq's own MaxRetry counts
	HeaderDeadline = "headway-deadline"  // RFC 3339 with fractions; absent: none
	HeaderTimeout  = "headway-timeout"   // Go duration; absent: none
	HeaderMaxWait  = "headway-max-wait"  // Go duration; absent: only the rules' own
	HeaderDue      = "headway-due"       // RFC 3339 with fractions: when the wait began; absent: unknown
	HeaderPriority = "headway-priority"  // whole number; absent: 0
	HeaderID       = "headway-id"        // the task's id; absent: unknown
	HeaderApp      = "headway-app"       // the enqueuing application, as EscapeApp writes it; absent: unknown. It needs no HeaderScope
	// HeaderExpected is the start that was expected when the task was enqueued, RFC 3339 with fractions.
	// Only clients with an OnEnqueue set it, on tasks that wait for their limits; nothing depends on it.
	HeaderExpected = "headway-expected"
	// HeaderWaitsFor is set under the same conditions: how many waiters of the task's scope were before it,
	// and, if a rule is known, how many names of the scope make up the rule's level, and the rule with its
	// place in the policy. Example: "12 2 payments/*:tenant".
	HeaderWaitsFor = "headway-waits-for"
)

// ownHeaders is the prefix of the headers that only Headway sets.
const ownHeaders = "headway-"

// maxAppBytes is how many bytes of an application's name count.
const maxAppBytes = 128

// EscapeApp returns the name of an application as HeaderApp holds it: its first 128 bytes, escaped as
// by wire.Escape. Invalid UTF-8 becomes U+FFFD, because asynq's headers hold only UTF-8.
func EscapeApp(name string) string {
	return wire.Escape(clipApp(strings.ToValidUTF8(name, "\uFFFD")))
}

// EnqueuedBy returns the name of the application that enqueued a task, at most 128 bytes, or "" if it
// is unknown. The name is not authenticated: any program that can enqueue can set it.
func EnqueuedBy(t *asynq.Task) string {
	return clipApp(wire.Unescape(t.Headers()[HeaderApp]))
}

func clipApp(name string) string {
	if len(name) > maxAppBytes {
		name = strings.ToValidUTF8(name[:maxAppBytes], "")
	}
	return name
}

var headerNames = []string{
	HeaderScope, HeaderCost, HeaderMaxRetry, HeaderDeadline, HeaderTimeout, HeaderMaxWait, HeaderDue, HeaderPriority, HeaderID,
}

// NoBudget is the Budget of a task without HeaderMaxRetry: asynq itself enqueued it, and asynq's own MaxRetry bounds its retries.
const NoBudget = -1

// Spec is the content of a task's headers.
type Spec struct {
	Scope    string        // valid
	Cost     int64         // 1 to MaxCost; 0 with Costs
	Costs    policy.Costs  // by unit, instead of Cost; nil: none
	Budget   int           // retries after real failures, or NoBudget
	Deadline time.Time     // zero: none
	Timeout  time.Duration // of one run from its start; 0: none
	MaxWait  time.Duration // longest wait for its limits; 0: no bound of its own
	Due      time.Time     // earliest start; zero: unknown
	Priority int
	ID       string // asynq's task id; empty when the header is absent
}

// HeaderError is the error for a task header that this package cannot have written.
type HeaderError struct {
	Header string
	Value  string
	Reason string
}

func (e *HeaderError) Error() string {
	return fmt.Sprintf("queue: task header %s: %q: %s", e.Header, diag.Clip(e.Value), e.Reason)
}

const sendsARequest = "0 requests; a task of type \"http\" sends one"

// sendsUncounted reports whether a task of type http would send its request without spending from any rule that counts requests.
func sendsUncounted(kind string, costs policy.Costs) bool {
	return kind == TypeHTTP && len(costs) > 0 && costs.Of(policy.Requests) == 0
}

// ReadSpec reads the headers of a task, with defaults for absent ones. It returns false if the task has none
// of them: another program made it. The scope is empty for a task without a scope that a worker has moved
// to another queue. The error is a *HeaderError for a damaged value, or for other headers without a scope.
func ReadSpec(t *asynq.Task) (Spec, bool, error) {
	headers := t.Headers()
	scope, ok := headers[HeaderScope]
	if !ok {
		for _, name := range headerNames {
			if _, damaged := headers[name]; damaged {
				return Spec{}, false, &HeaderError{Header: HeaderScope, Reason: "missing, though the task carries " + name}
			}
		}
		return Spec{}, false, nil
	}
	r := headerReader{headers: headers}
	spec := Spec{
		Scope:    scope,
		Budget:   int(r.number(HeaderMaxRetry, NoBudget, 0, MaxRetries)),
		Deadline: r.time(HeaderDeadline),
		Timeout:  r.duration(HeaderTimeout),
		MaxWait:  r.duration(HeaderMaxWait),
		Due:      r.time(HeaderDue),
		Priority: int(r.number(HeaderPriority, 0, -MaxPriority, MaxPriority)),
		ID:       headers[HeaderID],
	}
	spec.Cost, spec.Costs = r.cost()
	if sendsUncounted(t.Type(), spec.Costs) {
		r.fail(HeaderCost, sendsARequest)
	}
	if _, err := policy.ParseScope(scope); err != nil && scope != "" {
		r.fail(HeaderScope, err.Error())
	}
	if r.err != nil {
		return Spec{}, false, r.err
	}
	return spec, true, nil
}

// headers returns the headers of a task that has its defaults and an id. app is the escaped name of
// the enqueuing application. Zero values are left out.
func (t Task) headers(now time.Time, app string) map[string]string {
	h := map[string]string{
		HeaderScope:    t.Scope,
		HeaderMaxRetry: strconv.Itoa(*t.MaxRetry),
		HeaderID:       t.ID,
		HeaderDue:      t.due(now).UTC().Format(time.RFC3339Nano),
	}
	if len(t.Costs) > 0 {
		h[HeaderCost] = t.Costs.String()
	} else if t.Cost != DefaultCost {
		h[HeaderCost] = strconv.FormatInt(t.Cost, 10)
	}
	if !t.Deadline.IsZero() {
		h[HeaderDeadline] = t.Deadline.UTC().Format(time.RFC3339Nano)
	}
	if t.Timeout > 0 {
		h[HeaderTimeout] = t.Timeout.String()
	}
	if t.MaxWait > 0 {
		h[HeaderMaxWait] = t.MaxWait.String()
	}
	if t.Priority != 0 {
		h[HeaderPriority] = strconv.Itoa(t.Priority)
	}
	if app != "" {
		h[HeaderApp] = app
	}
	return h
}

// headerReader reads values and keeps the first fault.
type headerReader struct {
	headers map[string]string
	err     error
}

func (r *headerReader) fail(name, reason string) {
	if r.err == nil {
		r.err = &HeaderError{Header: name, Value: r.headers[name], Reason: reason}
	}
}

// cost reads a number, or costs by unit.
func (r *headerReader) cost() (int64, policy.Costs) {
	text := r.headers[HeaderCost]
	if !strings.Contains(text, "=") {
		return r.number(HeaderCost, DefaultCost, 1, MaxCost), nil
	}
	costs, err := policy.ParseCosts(text)
	if err != nil {
		r.fail(HeaderCost, strings.TrimPrefix(err.Error(), "throttle: costs: "))
	}
	return 0, costs
}

func (r *headerReader) number(name string, absent, low, high int64) int64 {
	text, ok := r.headers[name]
	if !ok {
		return absent
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high || strings.HasPrefix(text, "+") {
		r.fail(name, fmt.Sprintf("want a whole number from %d to %d", low, high))
	}
	return n
}

func (r *headerReader) time(name string) time.Time {
	text, ok := r.headers[name]
	if !ok {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		r.fail(name, "want a time as RFC 3339 writes it")
	}
	return at.UTC()
}

func (r *headerReader) duration(name string) time.Duration {
	text, ok := r.headers[name]
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < minDuration || d > maxDuration {
		r.fail(name, "want a duration from 1µs to ten years")
	}
	return d
}
