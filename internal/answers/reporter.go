// Package answers applies what APIs answer about their limits: it reports pauses and corrected limits to Redis, records what they
// change, and says which granted starts a pause overtakes. It decides nothing. docs/vendor.md has the design.
package answers

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// Config is what a Reporter needs. All fields are required.
type Config struct {
	Redis     redis.UniversalClient
	Scopes    *wire.Scopes
	Base      string        // the prefix of all keys
	Timeout   time.Duration // of each round trip
	Tolerance time.Duration // throttle.Config.StartTolerance
	Logger    *slog.Logger
	Clock     func() string                 // what scripts take for their clock: "" for the server's
	Now       func(prefix string) time.Time // the server's time, by the prefix of a provider's keys
	Wake      func(provider string)         // dispatches the tasks that may start now
	OnChange  func(Change)
}

// Reporter reports the answers of APIs. It remembers what it has reported and heard, so that it reports nothing twice: of up to
// maxCached scopes and rules. It is safe for concurrent use.
type Reporter struct {
	cfg     Config
	waiting atomic.Int64 // starts that are waited for
	probing atomic.Bool  // there are probes
	process int64        // the number of this process among those that report calls

	mu          sync.Mutex
	pauses      map[string]pause // by scopeKey, as all maps but the next two
	words       map[wordKey]sentWord
	corrections map[string]time.Time // until when a rule is corrected, by ruleKey
	looked      map[string]time.Time // when pauses were last looked up
	probes      map[string]time.Time // when the latest probe began
	open        map[string]time.Time // until when the breaker of a level is open, as far as this process knows
	tallies     map[string]*tally    // of calls, by the prefix of a provider's keys
	next        chan struct{}        // closed when a pause is heard of; nil if no start waits for that
}

// New returns a Reporter. It does no I/O.
func New(cfg Config) *Reporter { return &Reporter{cfg: cfg, process: 1 + rand.N[int64](wire.Never-1)} }

// Result is the effect of an answer.
type Result struct {
	// Until is when the scope's pause ends, by the Redis server's clock; zero if the answer asks for none.
	Until time.Time
	// Changed says that the answer was the first to report this.
	Changed bool
	// Scope is which scope waits, and Rule the rule at its level that the answer names; both are empty if the answer asks for no
	// pause, and Rule also if it names none of the policy.
	Scope, Rule string
}

// Change is a new effect of an API's answer.
type Change struct {
	// What is "pause", "cut" for a reduced rule, "limit" for the API's own limit, "rise" for one above the configured limit, or "open"
	// or "closed" for a breaker.
	What string `json:"what"`
	// Scope is the level that is paused, or at which the rule counts. Rule is the name of the rule and Pattern its place in the
	// policy; both are empty for a pause.
	Scope   string `json:"-"`
	Rule    string `json:"rule,omitempty"`
	Pattern string `json:"-"`
	// Limit is the API's own limit, for "limit"; 0 if the configured one applies again.
	Limit int64 `json:"limit,omitempty"`
	// Until is when the effect ends by itself, by the Redis server's clock, and Left the time until then.
	Until time.Time     `json:"until,omitzero"`
	Left  time.Duration `json:"-"`
	// Calls and Failures are how many calls opened a breaker, and how many of them had failed; 0 if a person did. Shadow says that
	// it only counts, and has opened nothing.
	Calls    int64 `json:"calls,omitempty"`
	Failures int64 `json:"failures,omitempty"`
	Shadow   bool  `json:"shadow,omitempty"`
}

// answer is one answer of an API, and the scope whose call was answered.
type answer struct {
	upstream.Hint
	scope  *wire.Scope // of the call
	at     *wire.Scope // which waits: the call's, or one above it
	named  *policy.MatchedRule
	policy *policy.Policy
	probed bool // it may be that of the scope's probe
}

// Report is throttle.Limiter.Report.
func (r *Reporter) Report(ctx context.Context, scope string, hint upstream.Hint) (out Result, err error) {
	pol, _ := r.cfg.Scopes.Policy()
	if hint.Failed && hint.Status == 0 { // no answer came
		return out, nil
	}
	if !hint.Limited && len(hint.Quotas) == 0 && (hint.Unread || hint.Failed || !pol.RaisesLimits()) && !r.probing.Load() {
		return out, nil
	}
	s, err := r.cfg.Scopes.Of(scope)
	if err != nil || len(s.Rules) == 0 {
		return out, err
	}
	heeds := pol.Answers(s.Scope)
	if heeds == policy.AnswersIgnore || !pol.Hears(s.Scope, hint.Host) {
		return out, nil
	}
	if heeds == policy.AnswersRefusals && !hint.Limited {
		hint.Quotas = nil
	}
	began, probed := r.probed(s, hint.Sent)
	a := answer{Hint: hint, scope: s, at: s, policy: pol, probed: probed}
	if hint.Limited {
		a.locate(r.cfg.Scopes)
		out.Scope = a.at.Scope.String()
		if a.named != nil {
			out.Rule = a.named.Rule.Name
		}
	}
	words, until := r.pauseWords(a)
	if heeds.Correct() {
		words = append(words, r.ruleWords(a, len(words) > 0)...)
	}
	if out.Until = until; len(words) == 0 {
		return out, nil
	}
	noted, err := r.send(ctx, s, words)
	if err != nil {
		for _, w := range words {
			r.forgetWords(s.Prefix + w.Name) // it is reported with the next answer
		}
		return out, err
	}
	if probed {
		r.endProbe(s, began)
		r.cfg.Wake(s.Scope.Provider()) // a pause may end sooner than its probe would have been given up
	}
	r.noted(ctx, a, words, noted, &out)
	return out, nil
}

// locate finds which scope waits for a refused call, and the rule that the answer names.
func (a *answer) locate(scopes *wire.Scopes) {
	level, named, is := a.policy.WaitsFor(a.scope.Scope, a.Hint)
	if s, err := scopes.Of(level.String()); err == nil && len(s.Rules) > 0 {
		a.at = s
	}
	if is {
		a.named = &named
	}
}

// noted remembers what became of the words of an answer, and passes on what changed.
func (r *Reporter) noted(ctx context.Context, a answer, words []wire.Word, noted []wire.Noted, out *Result) {
	var changes []Change
	for i, n := range noted {
		w := words[i]
		if w.Pauses() {
			out.Until = n.Until
		}
		r.remember(a.at, w, n)
		if !n.Changed {
			continue
		}
		out.Changed = true
		change := changeBy(a.scope, w, n)
		if change.What != "" {
			r.cfg.OnChange(change)
			changes = append(changes, change)
		}
		r.log(ctx, a, w, change)
	}
	r.record(ctx, a, changes, noted[0].At)
}

// send reports words, and returns what became of each.
func (r *Reporter) send(ctx context.Context, s *wire.Scope, words []wire.Word) (noted []wire.Noted, err error) {
	reply, err := wire.Call(context.WithoutCancel(ctx), r.cfg.Redis, r.cfg.Timeout, lua.Report, s.Prefix, wire.ReportArgs(r.cfg.Clock(), words)...)
	waits := false
	if err == nil {
		waits, noted, err = wire.ReadReport(reply, words)
	}
	if err != nil {
		return nil, wire.Unavailable(ctx, "report what the API said of", s.Scope.String(), err)
	}
	if waits {
		r.cfg.Wake(s.Scope.Provider())
	}
	return noted, nil
}

// changeBy returns what a word has changed. What is empty for the end of a pause, which is no Change.
func changeBy(s *wire.Scope, w wire.Word, n wire.Noted) Change {
	effects := map[string]string{"pause": "pause", "rest": "pause", "cut": "cut", "adopt": "limit", "rise": "rise"}
	change := Change{What: effects[w.Verb], Limit: w.Limit, Until: n.Until, Left: n.Left}
	if w.Pauses() {
		change.Scope = wire.ScopeOf(s.Scope.Provider(), n.Name)
	}
	for _, b := range s.Rules {
		if wire.RuleName(b) == w.Name {
			change.Scope, change.Rule, change.Pattern = b.Scope.String(), b.Rule.Name, b.Pattern
		}
	}
	return change
}

// log writes a line for what a word has changed.
func (r *Reporter) log(ctx context.Context, a answer, w wire.Word, change Change) {
	log, answered, until := r.cfg.Logger, a.scope.Scope.String(), change.Until.UTC().Format(time.RFC3339)
	switch {
	case w.Pauses():
		log.WarnContext(ctx, "the API asked to stop calling; scope paused", "scope", change.Scope, "answered", answered, "until", until, "said", w.Verb == "pause")
	case w.Verb == "open":
		log.InfoContext(ctx, "the API accepts calls again; scope resumed", "scope", answered)
	case w.Verb == "cut":
		log.InfoContext(ctx, "the API rejects calls; limit reduced", "scope", answered, "rule", w.Name, "until", until)
	case w.Verb == "rise":
		log.InfoContext(ctx, "the API rejects no calls; limit raised above the configured one", "scope", answered, "rule", w.Name,
			"percent", w.Numbers[0]/onePercent, "until", until)
	case w.Limit > 0:
		log.WarnContext(ctx, "the API's limit differs from the configured one; using the API's", "scope", answered, "rule", w.Name, "limit", w.Limit, "until", until)
	case w.Verb == "adopt":
		log.InfoContext(ctx, "the API's limit is at least the configured one; using the configured one", "scope", answered, "rule", w.Name)
	}
}

// Reset forgets what was reported about the rules at a scope's own level, its pause and its breaker; or about one rule alone if that is
// named. Costs one round trip.
func (r *Reporter) Reset(ctx context.Context, s *wire.Scope, rule string) error {
	var words []wire.Word
	if rule == "" {
		words = append(words, wire.Word{Verb: "lift", Name: s.Path}, wire.Word{Verb: "close", Name: s.Path})
	}
	for _, b := range s.Rules {
		if b.Scope == s.Scope && correctable(b.Rule) && (rule == "" || b.Rule.Name == rule) {
			words = append(words, wire.Word{Verb: "free", Name: wire.RuleName(b)})
			r.forgetWords(ruleKey(s, b))
		}
	}
	if len(words) == 0 {
		return nil
	}
	noted, err := r.send(ctx, s, words)
	if err == nil && rule == "" {
		r.forgetPause(s)
		if noted[1].Changed {
			r.closed(ctx, s, s.Path, noted[1])
		}
	}
	return err
}
