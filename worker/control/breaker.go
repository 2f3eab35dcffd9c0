package control

import (
	"context"
	"fmt"
	"time"

	"github.com/headway-go/headway/throttle"
)

// Breaker is a breaker that is open. docs/json.md has its fields.
type Breaker struct {
	Scope     string `json:"scope"`
	Since     Time   `json:"since"`
	NextProbe Time   `json:"next_probe,omitzero"` // when one more may go; zero for at once
	Probing   int    `json:"probing,omitempty"`
	Calls     int64  `json:"calls,omitempty"` // that opened it, none if a person did
	Failures  int64  `json:"failures,omitempty"`
}

// BreakersOf returns the breakers of a state, outermost first.
func BreakersOf(state throttle.UpstreamState) (list []Breaker) {
	for _, b := range state.Breakers {
		one := Breaker{Scope: b.Scope, Since: At(b.Since), Probing: b.Probing, Calls: b.Calls, Failures: b.Failures}
		if b.Next.After(state.At) {
			one.NextProbe = At(b.Next)
		}
		list = append(list, one)
	}
	return list
}

// Why says what opened it: "14 of 20 calls failed".
func (b Breaker) Why() string {
	if b.Calls == 0 {
		return "by hand"
	}
	return fmt.Sprintf("%d of %d calls failed", b.Failures, b.Calls)
}

// Then says what comes next. NextProbe follows, unless it is zero.
func (b Breaker) Then() string {
	switch {
	case b.NextProbe.IsZero():
		return "the next call is a probe"
	case b.Probing > 0:
		return "a probe is on its way, the next goes at the latest"
	}
	return "next probe"
}

// nameBreaker has a wait for an API name the open breaker that ends after all pauses of the API, if there is one.
func (w *Wait) nameBreaker(state throttle.UpstreamState) {
	if w.Reason != ReasonUpstream {
		return
	}
	var until time.Time
	for _, p := range state.Pauses {
		if p.Until.After(until) {
			until = p.Until
		}
	}
	for _, b := range state.Breakers {
		if !b.Next.Before(until) {
			w.Reason, w.RuleScope, until = ReasonBreaker, b.Scope, b.Next
		}
	}
}

// askBreaker is nameBreaker by what applies at a scope now. It costs a round trip if the wait is one for an API. Without an answer of Redis
// the wait stays as it is.
func (s *Service) askBreaker(ctx context.Context, scope string, waits ...*Wait) {
	var state throttle.UpstreamState
	for _, w := range waits {
		if w.Reason != ReasonUpstream {
			continue
		}
		if state.At.IsZero() {
			var err error
			if state, err = s.limiter.UpstreamState(ctx, scope); err != nil {
				return
			}
		}
		w.nameBreaker(state)
	}
}
