package answers

import (
	"cmp"
	"context"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// A breaker that closes lets its level's rules count a tenth of themselves at first, and twice as much every rampStep. The process
// that closed it says so step by step; if it crashes, the last part counts until the ramp would have ended.
const rampStep = 3 * time.Second

var rampParts = []int64{whole / 10, whole / 5, 2 * whole / 5, 4 * whole / 5, whole}

// Call is how a call of a scope has ended.
type Call struct {
	Scope  *wire.Scope
	Lease  string    // under which it was granted, if it goes first after a pause: it may be a breaker's probe
	Failed bool      // a connection error, a time-out, or a 5xx that asks for no pause
	Sent   time.Time // when it was sent, by the clock of this process
}

// CallResult is what is known of the breakers on a scope's path after a call.
type CallResult struct {
	// Until is when a breaker that this process knows to be open lets a probe go, by its own clock; zero if there is none.
	Until time.Time
	// KeepsAttempt says that a task whose call failed uses up no attempt, since a breaker on the path has retry: false.
	KeepsAttempt bool
}

// Called is throttle.Limiter.ReportCall.
func (r *Reporter) Called(ctx context.Context, c Call) (CallResult, error) {
	if len(c.Scope.Rules) == 0 {
		return CallResult{}, nil
	}
	was, err := false, error(nil)
	if c.Lease != "" {
		was, err = r.probeEnded(ctx, c)
	}
	if !was && err == nil && len(c.Scope.Breakers) > 0 {
		err = r.count(ctx, c)
	}
	return r.isOpen(c.Scope), err
}

// probeEnded reports how a probe has ended. It returns false if it was no breaker's, or none that counts any more.
func (r *Reporter) probeEnded(ctx context.Context, c Call) (was bool, err error) {
	var words []wire.Word
	for _, level := range breakerLevels(c.Scope) {
		b, _ := breakerAt(c.Scope, level)
		words = append(words, wire.ProbedWord(level, c.Lease, c.Failed, b.Breaker.Longest().Microseconds()))
		if !c.Failed {
			words = append(words, r.ramp(c.Scope, level, 0, 0)...)
		}
	}
	noted, err := r.send(ctx, c.Scope, words)
	if err != nil {
		return false, err
	}
	for i, n := range noted {
		switch w := words[i]; {
		case w.Verb == "ramp":
			r.remember(c.Scope, w, n)
		case n.Changed && n.Until.IsZero():
			r.closed(ctx, c.Scope, w.Name, n)
			was = true
		case n.Changed:
			r.opened(ctx, c.Scope, w.Name, n, false)
			was = true
		case !n.Until.IsZero(): // another probe has opened it again, or it came late
			was = true
		}
	}
	return was, nil
}

// breakerLevels are the paths of the levels that have breakers; if the policy has none any more, those that may have had one.
func breakerLevels(s *wire.Scope) (paths []string) {
	for _, b := range s.Breakers {
		paths = append(paths, wire.Path(b.Scope.String()))
	}
	if paths == nil {
		return levels(s)
	}
	return paths
}

// ramp returns the words for a step of the ramp at a level, so long after its breaker has closed.
func (r *Reporter) ramp(s *wire.Scope, level string, step int, age time.Duration) (words []wire.Word) {
	left := time.Duration(len(rampParts)-1-step) * rampStep
	for _, b := range s.Rules {
		if correctable(b.Rule) && wire.Path(b.Scope.String()) == level {
			words = append(words, r.word("ramp", b, b.Rule.Limit, b.Rule.Burst, rampParts[step], left.Microseconds(), age.Microseconds()))
		}
	}
	return words
}

// closed notes that a breaker has closed, and takes its level's rules up the ramp.
func (r *Reporter) closed(ctx context.Context, s *wire.Scope, level string, n wire.Noted) {
	r.setOpen(s.Prefix+level, time.Time{})
	change := Change{What: "closed", Scope: wire.ScopeOf(s.Scope.Provider(), level), Pattern: patternOf(s, level)}
	r.cfg.OnChange(change)
	r.record(ctx, answer{scope: s}, []Change{change}, n.At)
	r.cfg.Logger.InfoContext(ctx, "a call went through; breaker closed", "scope", change.Scope)
	if len(r.ramp(s, level, 0, 0)) > 0 {
		r.climb(s, level, 1, time.Now())
	}
}

// climb takes the rules of a level up the ramp by one step, and by the next a while later.
func (r *Reporter) climb(s *wire.Scope, level string, step int, began time.Time) {
	time.AfterFunc(rampStep, func() {
		_, err := r.send(context.Background(), s, r.ramp(s, level, step, time.Since(began)))
		if step++; step < len(rampParts) && err == nil { // else the corrections end by the clock
			r.climb(s, level, step, began)
		}
	})
}

// opened notes that a breaker has opened, or would have if it did more than count.
func (r *Reporter) opened(ctx context.Context, s *wire.Scope, level string, n wire.Noted, shadow bool) {
	change := Change{
		What: "open", Scope: wire.ScopeOf(s.Scope.Provider(), level), Pattern: patternOf(s, level), Until: n.Until, Left: n.Left, Shadow: shadow,
	}
	if !shadow {
		r.heard(s.Prefix+level, n.Until, n.At)
		r.setOpen(s.Prefix+level, time.Now().Add(n.Left))
		change.Calls, change.Failures = r.opening(ctx, s, level)
	}
	r.cfg.OnChange(change)
	r.record(ctx, answer{scope: s}, []Change{change}, n.At)
	r.cfg.Logger.WarnContext(ctx, "calls fail; breaker open", "scope", change.Scope, "calls", change.Calls, "failures", change.Failures,
		"next_probe", n.Until.UTC().Format(time.RFC3339), "shadow", shadow)
}

// opening returns how many calls opened a breaker, and how many of them had failed; 0 if that is not known.
func (r *Reporter) opening(ctx context.Context, s *wire.Scope, level string) (calls, failures int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Timeout)
	defer cancel()
	p, _ := wire.ReadPause(r.cfg.Redis.HGet(ctx, wire.APIKey(s.Prefix), "B"+level).Val())
	return p.Calls, p.Failures
}

// breakerAt returns the breaker of a level, which a scope's path may have.
func breakerAt(s *wire.Scope, level string) (b policy.MatchedBreaker, is bool) {
	for _, b := range s.Breakers {
		if wire.Path(b.Scope.String()) == level {
			return b, true
		}
	}
	return b, false
}

func patternOf(s *wire.Scope, level string) string {
	b, _ := breakerAt(s, level)
	return b.Pattern
}

// setOpen notes until when a level's breaker is open, zero for one that has closed.
func (r *Reporter) setOpen(level string, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if delete(r.open, level); !until.IsZero() {
		put(&r.open, level, until)
	}
}

// isOpen returns what this process knows of the breakers on a scope's path.
func (r *Reporter) isOpen(s *wire.Scope) (out CallResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range s.Breakers {
		out.KeepsAttempt = out.KeepsAttempt || b.Breaker.KeepAttempts
		if until := r.open[s.Prefix+wire.Path(b.Scope.String())]; until.After(time.Now()) && until.After(out.Until) {
			out.Until = until
		}
	}
	return out
}

// OpenBreaker is throttle.Limiter.OpenBreaker.
func (r *Reporter) OpenBreaker(ctx context.Context, s *wire.Scope, wait time.Duration) error {
	own, _ := breakerAt(s, s.Path)
	numbers := [5]int64{own.Breaker.Probe, cmp.Or(wait, own.Breaker.Wait).Microseconds()}
	noted, err := r.send(ctx, s, []wire.Word{{Verb: "trip", Name: s.Path, Numbers: numbers}})
	if err == nil && noted[0].Changed {
		r.opened(ctx, s, s.Path, noted[0], false)
	}
	return err
}

// CloseBreaker is throttle.Limiter.CloseBreaker.
func (r *Reporter) CloseBreaker(ctx context.Context, s *wire.Scope) error {
	noted, err := r.send(ctx, s, append([]wire.Word{{Verb: "lift", Name: s.Path}, {Verb: "close", Name: s.Path}}, r.ramp(s, s.Path, 0, 0)...))
	if err != nil {
		return err
	}
	r.forgetPause(s)
	if noted[1].Changed {
		r.closed(ctx, s, s.Path, noted[1])
	}
	return nil
}
