package throttle

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// knownPause is by how much an answer must put a pause off to be worth telling: answers that come together say the same in whole seconds.
const knownPause = 250 * time.Millisecond

// A cut limit grows in each of its rule's windows, which count for at least leastWindow. Rules of longer windows than mostWindow are
// neither cut nor raised: how much is left of a day says little of how fast to go.
const (
	leastWindow = time.Second
	mostWindow  = time.Hour
	// An API's own limit holds for so long after it was reports of last, and for two of its windows, and so does it that calls go through;
	// who hears the same again tells it when half of that is over.
	adoptedFor = time.Hour
	// whole is all of a limit in millionths, and onePercent a hundredth of it.
	whole, onePercent = 1_000_000, 10_000
)

// ReportResult is the effect of an answer.
type ReportResult struct {
	// Until is when the scope's pause ends, by the Redis server's clock; zero if the answer asks for none.
	Until time.Time
	// Changed says that the answer was the first to report this.
	Changed bool
}

// ReadAnswer reads an API's answer to a call that spent from a scope, for Report. It is upstream.Read, with the unit of resets
// that the policy names. It asks nothing of Redis. A scope that meets no rule is read without a unit.
func (l *Limiter) ReadAnswer(scope string, status int, header http.Header, now time.Time) upstream.Hint {
	var r upstream.Reader
	if p, err := l.plan(scope); err == nil {
		r.ResetUnit = p.resets
	}
	return r.Read(status, header, now)
}

// Report applies what an API's answer says about its limits to all that spend from a scope and from the scopes below it, in every process:
// nothing starts there before the API accepts calls again. Other scopes go on.
//
// A refusal pauses the scope for the time that it gives. Without such a time, it pauses the scope for a second, or as Refusals of the
// policy says, and for twice as long after each further refusal that follows soon, up to five minutes; then one call goes first, and the
// others follow once it is reported with an answer that is no refusal. Any other answer that leaves no request pauses the scope until
// requests are available again. No pause is longer than Config.LongestPause.
//
// Rules are corrected at the scope's own level, and at levels above it whose Answers say heed: one tenant's answers do not slow other
// tenants unless the policy says that they apply to all. A refusal reduces the limits of the rules at the lowest of these levels that has
// any by 15 % of their present value, but never below a tenth of the configured limit. They grow back by 2 % in each window, or as Corrects
// of the policy says. If the API's own limit is smaller than the lowest rule of the same unit and window, it replaces that rule's limit
// until an answer says otherwise, or for an hour. Nothing is admitted that the policy would not admit; only the policy lets limits grow
// above the configured ones.
//
// Programs that call APIs themselves call it with every answer. An answer that says nothing, or nothing new to this process, costs nothing;
// any other costs one round trip, and one or two more if it changed something, to record that for UpstreamEvents. Where limits may grow, an
// answer that refuses nothing costs one too, once in half an hour. Report does nothing if the scope meets no rule, or if limits.yaml says
// "answers: ignore", or "answers: refusals" where none is refused, or names hosts other than the answer's Host. It runs even if ctx has
// ended. The error is a *policy.ScopeError or *policy.UnmatchedError, or wraps ErrUnavailable.
// Source: docs/vendor.md#pauses
func (l *Limiter) Report(ctx context.Context, scope string, a upstream.Hint) (ReportResult, error) {
	if !a.Limited && len(a.Quotas) == 0 && (a.Unread || !l.Policy().RaisesLimits()) && !l.reports.probing.Load() {
		return ReportResult{}, nil
	}
	p, err := l.plan(scope)
	if err != nil || len(p.Rules) == 0 || p.answers == policy.AnswersIgnore || !p.hearsHost(a.Host) {
		return ReportResult{}, err
	}
	if p.answers == policy.AnswersRefusals && !a.Limited {
		a.Quotas = nil
	}
	began, probed := l.reports.probed(p, a.Sent)
	words, out, known := l.pauses(p, a, probed)
	if probed && !a.Limited {
		words = append(words, wire.Word{Verb: "open", Name: p.Path, Numbers: [5]int64{age(a)}})
	}
	if p.answers.Correct() {
		switch {
		case a.Unread:
		case !a.Limited:
			words = append(words, l.rises(p)...)
		case len(words) > 0:
			words = append(words, l.cuts(p)...)
		}
		words = append(words, l.adoptions(p, a)...)
	}
	if len(words) == 0 {
		return out, nil
	}
	list, err := l.sendWords(ctx, p, words)
	if err != nil {
		for _, w := range words {
			l.reports.forget(p.Prefix, w.Name) // it is to be reported with the next answer
		}
		return out, err
	}
	if probed {
		l.reports.endProbe(p, began)
		l.list.Wake(p.Scope.Scope.Provider()) // a pause may end sooner than its probe would have been given up
	}
	var changes []UpstreamChange
	for i, one := range list {
		w := words[i]
		if w.Pauses() {
			out.Until = one.Until
		}
		change := p.changeBy(w, one)
		l.noted(ctx, p, w, one, change, known)
		if out.Changed = out.Changed || one.Changed; one.Changed && change.What != "" {
			changes = append(changes, change)
		}
	}
	l.recordEvents(ctx, p, a, changes, list[0].At)
	return out, nil
}

// correctable tells whether a rule is one whose limit an API can correct.
func correctable(r policy.Rule) bool {
	return r.Limit > 0 && (r.Algorithm == policy.TokenBucket || r.Algorithm == policy.SlidingWindow || r.Algorithm == policy.FixedWindow)
}

// hears reports whether answers to the path's calls correct a rule: one of the scope's own level, or of a level that says that it heeds.
func (p *plan) hears(b policy.MatchedRule) bool { return b.Heeds || b.Scope == p.Scope.Scope }

// paced are the rules that refusals cut, and that grow again: those of the lowest level that has any.
func (p *plan) paced() (some []int) {
	for i := len(p.Rules) - 1; i >= 0; i-- {
		b := p.Rules[i]
		if !correctable(b.Rule) || b.Rule.Per > mostWindow || !p.hears(b) {
			continue
		}
		if len(some) > 0 && b.Scope.Len() != p.Rules[some[0]].Scope.Len() {
			break
		}
		some = append(some, i)
	}
	return some
}

// wholeOf is a rule's numbers as scripts read them, under a limit, and after them its own.
func (l *Limiter) wholeOf(b policy.MatchedRule, limit, burst int64) string {
	_, own := wire.Numbers(b.Rule, l.cfg.StartTolerance, time.Time{})
	b.Rule.Limit, b.Rule.Burst = limit, burst
	kind, numbers := wire.Finer(b.Rule, l.cfg.StartTolerance)
	return wire.RuleText(kind, append(numbers, own...))
}

// word reports something of a rule.
func (l *Limiter) word(verb string, b policy.MatchedRule, numbers ...int64) wire.Word {
	w := wire.Word{Verb: verb, Name: wire.RuleName(b), Rule: l.wholeOf(b, b.Rule.Limit, b.Rule.Burst)}
	copy(w.Numbers[:], numbers)
	return w
}

// cuts are the words that cut rules.
func (l *Limiter) cuts(p *plan) (words []wire.Word) {
	for _, i := range p.paced() {
		b := p.Rules[i]
		c := b.Corrects.WithDefaults()
		if c.Least < c.Most { // else nothing is left to cut
			apart := min(max(b.Rule.Per, leastWindow), time.Minute)
			words = append(words, l.word("cut", b, (100-c.Cut)*onePercent, apart.Microseconds(), growsBy(b), c.Least*onePercent, c.Most*onePercent))
		}
	}
	return words
}

// rises are the words by which corrected rules grow again, and grow above their limits where the policy lets them, since a call
// was not refused: at most one a second for each rule.
func (l *Limiter) rises(p *plan) (words []wire.Word) {
	for _, i := range p.paced() {
		b, over := p.Rules[i], int64(0)
		if b.Corrects.Raises() {
			over = adoptedFor.Microseconds()
		} else if !l.reports.corrected(p, i) {
			continue
		}
		w := l.word("rise", b, max(whole, mostMillionths(b)), growsBy(b), over)
		if l.reports.isNews(p.Prefix+w.Name, w, growEach) {
			words = append(words, w)
		}
	}
	return words
}

// growEach is how often a corrected limit grows.
const growEach = time.Second

// growsBy is by how many millionths of a limit it grows in a second.
func growsBy(b policy.MatchedRule) int64 {
	return max(1, b.Corrects.WithDefaults().Grow*onePercent*int64(time.Second)/int64(max(b.Rule.Per, leastWindow)))
}

// mostMillionths is how many millionths of its limit may come of a rule, 0 for no more than it is.
func mostMillionths(b policy.MatchedRule) int64 {
	if !b.Corrects.Raises() || !correctable(b.Rule) {
		return 0
	}
	return b.Corrects.Most * onePercent
}

// mostOf is so many millionths of a limit, rounded down.
func mostOf(limit, most int64) int64 {
	n, _ := wire.MulDiv(limit, most, whole)
	return n
}

// adoptions are the words for limits of the API's own: each for the lowest rule of the same unit and window.
func (l *Limiter) adoptions(p *plan, a upstream.Hint) (words []wire.Word) {
	for _, q := range a.Quotas {
		if q.Limit <= 0 || q.Window <= 0 {
			continue
		}
		for _, b := range slices.Backward(p.Rules) {
			r := b.Rule
			if !correctable(r) || r.Unit != q.Unit || r.Per != q.Window || !p.hears(b) {
				continue
			}
			holds, w := max(adoptedFor, 2*r.Per), l.word("adopt", b)
			if w.Limit = adoptedOf(b, q.Limit); w.Limit > 0 {
				burst := r.Burst
				if !q.Rate {
					burst = min(burst, w.Limit)
				}
				w.Rule, w.Numbers[0] = l.wholeOf(b, w.Limit, burst), holds.Microseconds()
			}
			if l.reports.isNews(p.Prefix+w.Name, w, holds/2) {
				words = append(words, w)
			}
			break
		}
	}
	return words
}

// adoptedOf is what is taken of an API's own limit, 0 where it says nothing: one that is no
// smaller does where the rule's may grow, which it then does no further than that.
func adoptedOf(b policy.MatchedRule, limit int64) int64 {
	most := mostMillionths(b)
	if most == 0 && limit >= b.Rule.Limit {
		return 0
	}
	return min(limit, mostOf(b.Rule.Limit, max(most, whole)))
}

// sendWords reports words, and returns what became of each.
func (l *Limiter) sendWords(ctx context.Context, p *plan, words []wire.Word) (list []wire.Noted, err error) {
	reply, err := wire.Call(context.WithoutCancel(ctx), l.rdb, l.cfg.Timeout, lua.Report, p.Prefix, wire.ReportArgs(l.clock(), words)...)
	waits := false
	if err == nil {
		waits, list, err = wire.ReadReport(reply, words)
	}
	if err != nil {
		return nil, wire.Unavailable(ctx, "report what the API said of", p.Scope.Scope.String(), err)
	}
	if waits {
		l.list.Wake(p.Scope.Scope.Provider())
	}
	return list, nil
}

// noted keeps what was reported, and tells observers and the log of what is new.
func (l *Limiter) noted(ctx context.Context, p *plan, w wire.Word, one wire.Noted, change UpstreamChange, known bool) {
	switch {
	case one.Full:
		l.reports.unsaid(p.Prefix+w.Name, w.Verb)
	case w.Pauses():
		l.reports.note(p, one)
		l.emptyStocks(p.Prefix)
	case one.Changed && (w.Verb == "cut" || w.Verb == "adopt"):
		l.reports.correct(p.Prefix+w.Name, one.Left)
		l.emptyStocks(p.Prefix)
	}
	if !one.Changed {
		return
	}
	if change.What != "" && l.cfg.Observer != nil {
		l.cfg.Observer.UpstreamSignal(change.What)
	}
	if change.What != "" && l.cfg.OnUpstream != nil {
		l.cfg.OnUpstream(change)
	}
	answered, until := p.Scope.Scope.String(), one.Until.UTC().Format(time.RFC3339)
	log := l.cfg.Logger
	switch {
	case w.Pauses():
		log.WarnContext(ctx, "the API asked to stop calling; scope paused", "scope", change.Scope, "answered", answered, "until", until, "said", known)
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

// effects are what observers call what a word has done.
var effects = map[string]string{"pause": "pause", "rest": "pause", "cut": "cut", "adopt": "limit", "rise": "rise"}

// changeBy returns what a word has changed. What is empty for one that observers do not get.
func (p *plan) changeBy(w wire.Word, one wire.Noted) UpstreamChange {
	change := UpstreamChange{What: effects[w.Verb], Limit: w.Limit, Until: one.Until, Left: one.Left}
	if w.Pauses() {
		change.Scope = wire.ScopeOf(p.Scope.Scope.Provider(), one.Name)
	}
	for _, b := range p.Rules {
		if wire.RuleName(b) == w.Name {
			change.Scope, change.Rule, change.Pattern = b.Scope.String(), b.Rule.Name, b.Pattern
		}
	}
	return change
}

// ResetUpstream ends the pause of a scope and all corrections of the rules at its level. Waiters that they held up are dispatched at once.
// Scopes above and below it keep their pauses and corrections. Costs one round trip. Its errors are those of Report.
func (l *Limiter) ResetUpstream(ctx context.Context, scope string) error {
	p, err := l.plan(scope)
	if err != nil || len(p.Rules) == 0 {
		return err
	}
	return l.forget(ctx, p, "")
}

// forget forgets what was reported of a rule at the scope's level, or of all and of its pause.
func (l *Limiter) forget(ctx context.Context, p *plan, rule string) error {
	var words []wire.Word
	if rule == "" {
		words = append(words, wire.Word{Verb: "lift", Name: p.Path})
	}
	for _, b := range p.Rules {
		if b.Scope == p.Scope.Scope && correctable(b.Rule) && (rule == "" || b.Rule.Name == rule) {
			words = append(words, wire.Word{Verb: "free", Name: wire.RuleName(b)})
			l.reports.forget(p.Prefix, wire.RuleName(b))
		}
	}
	if len(words) == 0 {
		return nil
	}
	_, err := l.sendWords(ctx, p, words)
	if err == nil && rule == "" {
		l.reports.note(p, wire.Noted{})
	}
	return err
}
