package throttle

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// How long a scope rests whose API refuses and does not say for how long: firstRest, and
// twice as long each time that it is refused again soon after, up to mostRest; up to a tenth
// more keeps those apart that share an API and not a Redis.
const (
	firstRest = time.Second
	mostRest  = 5 * time.Minute
)

// heardFor is how long this process takes what it has told for what is known: somebody may
// have had it forgotten meanwhile.
const heardFor = 5 * time.Second

// knownPause is by how much an answer must put a pause off to be worth telling: answers that
// come together say the same in whole seconds.
const knownPause = 250 * time.Millisecond

// A cut limit grows in each of its rule's windows, which count for at least leastWindow. Rules
// of longer windows than mostWindow are neither cut nor raised: how much is left of a day says
// little of how fast to go.
const (
	leastWindow = time.Second
	mostWindow  = time.Hour
	// An API's own limit holds for so long after it was heard of last, and for two of its
	// windows, and so does it that calls go through; who hears the same again tells it when
	// half of that is over.
	adoptedFor = time.Hour
	// whole is all of a limit in millionths, and onePercent a hundredth of it.
	whole, onePercent = 1_000_000, 10_000
)

// ReportResult is what followed from an answer.
type ReportResult struct {
	// Until is when the scope's pause ends, by the Redis server's clock; zero where the answer
	// asks for none.
	Until time.Time
	// Changed says that nobody had told it before.
	Changed bool
}

// Report notes what an API's answer says about its limits, for all who spend from a scope and
// from those below it, in every process: nobody starts there before the API wants to be
// called again. Those of other scopes go on.
//
// A refusal pauses the scope for as long as it says, or, where it does not, for a second, and
// for twice as long each time that it is refused again soon after, up to five minutes. So
// does any other answer by which no request is left, until that is over. No pause is longer
// than Config.LongestPause.
//
// Rules are corrected at the scope's own level, and at levels above it whose Answers say heed: what
// one tenant is answered slows no other, unless the policy says that the answers speak for all. A
// refusal cuts the limits of the rules at the lowest of these levels that has any by 15 % of what they
// are, a tenth of what the policy says is left in any case; they grow back by 2 % in each window, or by
// what Corrects of the policy says. An API's own limit that is smaller than that of the lowest rule
// of the same unit and window is taken for it until an answer says otherwise, or for an hour. Nothing is ever admitted that the
// policy would not admit; how far limits may grow above the configured ones is for it to say.
//
// It is for those who call APIs themselves, and may be called with every answer: one that
// says nothing, or what is known here, costs nothing, any other a round trip; where limits may
// grow, so does one that refuses nothing, once in half an hour. Where
// limits.yaml says "answers: ignore", or names hosts that the answer's Host is none of, or the scope
// meets no rule, nothing follows. A context
// that has ended does not stop it. The error is a *ScopeError or *UnmatchedError, or wraps
// ErrUnavailable.
// Source: docs/vendor.md#pauses
func (l *Limiter) Report(ctx context.Context, scope string, a upstream.Hint) (ReportResult, error) {
	if !a.Limited && len(a.Quotas) == 0 && !l.scopes.raises() {
		return ReportResult{}, nil
	}
	p, err := l.scopes.of(scope)
	if err != nil || len(p.bounds) == 0 || p.answers == policy.AnswersIgnore || !p.hearsHost(a.Host) {
		return ReportResult{}, err
	}
	words, out, known := l.pauses(p, a)
	if p.answers != policy.AnswersPause {
		switch {
		case !a.Limited:
			words = append(words, l.rises(p)...)
		case len(words) > 0:
			words = append(words, p.cuts()...)
		}
		words = append(words, l.adoptions(p, a)...)
	}
	if len(words) == 0 {
		return out, nil
	}
	told, err := l.tell(ctx, p, words)
	if err != nil {
		for _, w := range words {
			l.heard.forget(p.provider, w.name) // it is to be told with the next answer
		}
		return out, err
	}
	for i, one := range told {
		l.noted(ctx, p, words[i], one, known)
		if words[i].verb == "pause" || words[i].verb == "rest" {
			out.Until = one.until
		}
		out.Changed = out.Changed || one.changed
	}
	return out, nil
}

// signal is what is told; see lua/report_upstream.lua.
type signal struct {
	verb, name string
	numbers    [5]int64
}

// frees says whether tasks may start sooner by the word than they would have.
func (w signal) frees() bool {
	switch w.verb {
	case "pause", "rest", "cut":
		return false
	}
	return true
}

// toldWord is what became of a word.
type toldWord struct {
	changed bool
	until   time.Time     // zero for nothing
	left    time.Duration // until then
	noted   string        // the level or rule that it is noted of
	full    bool          // there is no room for it
}

// pauses is the word for the pause that an answer asks for, if there is one that is not
// known, and what is known otherwise.
func (l *Limiter) pauses(p *compiledScope, a upstream.Hint) (words []signal, out ReportResult, known bool) {
	wait, known, asks := stays(a)
	if !asks {
		return nil, out, known
	}
	wait = min(wait, l.cfg.LongestPause)
	if until, told := l.heard.until(p, time.Now(), wait); told {
		return nil, ReportResult{Until: until}, known
	}
	if known {
		return []signal{{"pause", p.path, [5]int64{wait.Microseconds()}}}, out, known
	}
	most := min(mostRest, l.cfg.LongestPause*10/11) // with what chance adds it is no longer than that
	return []signal{{"rest", p.path, [5]int64{firstRest.Microseconds(), most.Microseconds(), rand.N(int64(100_000))}}}, out, known
}

// stays tells how long an answer asks to stay away, if it does, and whether it says so.
func stays(a upstream.Hint) (wait time.Duration, known, asks bool) {
	if a.Limited {
		return a.Retry, a.RetryKnown && a.Retry > 0, true
	}
	for _, q := range a.Quotas {
		if q.Unit == "requests" && q.Remaining == 0 && q.Reset > 0 {
			wait = max(wait, q.Reset)
		}
	}
	return wait, true, wait > 0
}

// correctable tells whether a rule is one whose limit an API can correct.
func correctable(r policy.Rule) bool {
	return r.Limit > 0 && r != openRule && (r.Algorithm == policy.TokenBucket || r.Algorithm == policy.SlidingWindow || r.Algorithm == policy.FixedWindow)
}

// hears reports whether answers to the path's calls correct a rule: one of the scope's own level, or
// of a level that says that it heeds.
func (p *compiledScope) hears(b policy.MatchedRule) bool { return b.Heeds || b.Scope == p.scope }

// paced are the rules that refusals cut, and that grow again: those of the lowest level that
// has any.
func (p *compiledScope) paced() (some []int) {
	for i := len(p.bounds) - 1; i >= 0; i-- {
		b := p.bounds[i]
		if !correctable(b.Rule) || b.Rule.Per > mostWindow || !p.hears(b) {
			continue
		}
		if len(some) > 0 && b.Scope.Len() != p.bounds[some[0]].Scope.Len() {
			break
		}
		some = append(some, i)
	}
	return some
}

// cuts are the words that cut rules.
func (p *compiledScope) cuts() (words []signal) {
	for _, i := range p.paced() {
		b := p.bounds[i]
		c := b.Corrects.WithDefaults()
		if c.Least >= c.Most {
			continue // nothing is left to cut
		}
		apart := min(max(b.Rule.Per, leastWindow), time.Minute)
		words = append(words, signal{"cut", p.ruleName(i), [5]int64{
			(100 - c.Cut) * onePercent, apart.Microseconds(), growsBy(b), c.Least * onePercent, c.Most * onePercent,
		}})
	}
	return words
}

// rises are the words by which rules may grow above their limits, since a call was not refused.
func (l *Limiter) rises(p *compiledScope) (words []signal) {
	for _, i := range p.paced() {
		b := p.bounds[i]
		if !b.Corrects.Raises() {
			continue
		}
		w := signal{"rise", p.ruleName(i), [5]int64{mostMillionths(b), growsBy(b), adoptedFor.Microseconds()}}
		if l.heard.signalResult(p.keys[i], w, adoptedFor/2) {
			words = append(words, w)
		}
	}
	return words
}

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

// reachOf is how many millionths of its limit may come of a rule: what the policy lets, as far as
// a bucket's numbers go. See lua/include/upstream/upstream.lua.
func reachOf(b policy.MatchedRule, pad time.Duration) int64 {
	most := max(whole, mostMillionths(b))
	if b.Rule.Algorithm != policy.TokenBucket {
		return most
	}
	_, n := ruleParams(b.Rule, pad)
	far, _ := mulDiv(min(maxDrain, maxParts/max(n[3], 1)), whole, n[0])
	return min(most, far)
}

// mostOf is so many millionths of a limit, rounded down.
func mostOf(limit, most int64) int64 {
	n, _ := mulDiv(limit, most, whole)
	return n
}

// ruleName is what follows the provider in a rule's key.
func (p *compiledScope) ruleName(i int) string { return p.keys[i][len(p.provider):] }

// adoptions are the words for limits of the API's own: each for the lowest rule of the same
// unit and window.
func (l *Limiter) adoptions(p *compiledScope, a upstream.Hint) (words []signal) {
	for _, q := range a.Quotas {
		if q.Limit <= 0 || q.Window <= 0 {
			continue
		}
		for i := len(p.bounds) - 1; i >= 0; i-- {
			r := p.bounds[i].Rule
			if !correctable(r) || r.Unit != q.Unit || r.Per != q.Window || !p.hears(p.bounds[i]) {
				continue
			}
			limit := adoptedOf(p.bounds[i], q.Limit)
			holds := max(adoptedFor, 2*r.Per)
			w := signal{"adopt", p.ruleName(i), [5]int64{limit, countedIn(r, l.cfg.StartTolerance).Microseconds(), holds.Microseconds()}}
			if l.heard.signalResult(p.keys[i], w, holds/2) {
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

// countedIn is the window in which scripts count a limit of the rule: the pad slows a bucket, and a
// margin or a prefetch does not. See ruleParams.
func countedIn(r policy.Rule, pad time.Duration) time.Duration {
	if r.Algorithm == policy.TokenBucket && widened(r) == 0 {
		return r.Per + pad
	}
	return r.Per
}

// tell tells words; see lua/report_upstream.lua.
func (l *Limiter) tell(ctx context.Context, p *compiledScope, words []signal) ([]toldWord, error) {
	c := newCall(lua.ReportUpstream, []any{p.told, p.queue[1], p.queue[3]}, 0, 1+7*len(words), 1+3*len(words))
	c.args = append(c.args, l.clock())
	for _, w := range words {
		c.args = append(c.args, w.verb, w.name)
		for _, n := range w.numbers {
			c.args = append(c.args, n)
		}
	}
	reply, err := l.runner.run(context.WithoutCancel(ctx), c)
	if err != nil {
		return nil, unavailable(ctx, "tell what the API said of", p.scope.String(), err)
	}
	out := make([]toldWord, len(words))
	for i, w := range words {
		changed, until, noted := reply[1+3*i], reply[2+3*i], reply[3+3*i]
		if out[i].changed = changed == 1; until > 0 {
			out[i].until, out[i].left = time.UnixMicro(until), us(until-reply[0])
		}
		out[i].noted, out[i].full = w.name[:max(0, noted)], noted < 0
	}
	if slices.ContainsFunc(out, func(one toldWord) bool { return one.changed }) && slices.ContainsFunc(words, signal.frees) {
		l.tellFreed(p.scope.Provider())
	}
	return out, nil
}

// noted keeps what was told, and has what is new in the log.
func (l *Limiter) noted(ctx context.Context, p *compiledScope, w signal, one toldWord, known bool) {
	if o, ok := l.cfg.Observer.(UpstreamObserver); ok && one.changed {
		o.UpstreamSignal(map[string]string{"pause": "pause", "rest": "pause", "cut": "cut", "adopt": "limit", "rise": "rise"}[w.verb])
	}
	if one.changed && (w.verb == "cut" || w.verb == "adopt") {
		l.emptyUnder(p.provider + w.name)
	}
	until := one.until.UTC().Format(time.RFC3339)
	scope := p.scope.String()
	switch {
	case one.full:
		l.heard.unsaid(p.provider+w.name, w.verb)
	case w.verb == "pause" || w.verb == "rest":
		l.heard.note(p, one)
		l.emptyBelow(p.provider, one.noted)
		scope = levelsOf(p.scope)[strings.Count(one.noted, "/")]
		if one.changed {
			l.cfg.Logger.WarnContext(ctx, "the API says to stay away; nothing starts in the scope until then", "scope", scope, "answered", p.scope.String(), "until", until, "said", known)
		}
	case !one.changed:
	case w.verb == "cut":
		l.cfg.Logger.InfoContext(ctx, "the API refuses calls; a limit is cut and grows back until then", "scope", scope, "rule", w.name, "until", until)
	case w.verb == "rise":
		l.cfg.Logger.InfoContext(ctx, "the API refuses no calls; a limit grows above the configured one until then", "scope", scope, "rule", w.name,
			"percent", w.numbers[0]/onePercent, "until", until)
	case w.verb == "adopt" && w.numbers[0] > 0:
		l.cfg.Logger.WarnContext(ctx, "the API's own limit is not the configured one, and counts until then",
			"scope", scope, "rule", w.name, "limit", w.numbers[0], "until", until)
	case w.verb == "adopt":
		l.cfg.Logger.InfoContext(ctx, "the API's own limit is as large as the configured one, which counts again", "scope", scope, "rule", w.name)
	}
}

// ResetUpstream ends the pause of a scope, and all corrections of the rules at its level, at once, and
// those who wait for them come. What has been told of scopes above and below it stays. Costs
// one round trip. Its errors are those of Report.
func (l *Limiter) ResetUpstream(ctx context.Context, scope string) error {
	p, err := l.scopes.of(scope)
	if err != nil || len(p.bounds) == 0 {
		return err
	}
	return l.forget(ctx, p, "")
}

// forget forgets what was told of a rule at the scope's level, or of all and of its pause.
func (l *Limiter) forget(ctx context.Context, p *compiledScope, rule string) error {
	var words []signal
	if rule == "" {
		words = append(words, signal{verb: "lift", name: p.path})
	}
	for i, b := range p.bounds {
		if b.Scope == p.scope && correctable(b.Rule) && (rule == "" || b.Rule.Name == rule) {
			words = append(words, signal{verb: "free", name: p.ruleName(i)})
			l.heard.forget(p.provider, p.ruleName(i))
		}
	}
	if len(words) == 0 {
		return nil
	}
	_, err := l.tell(ctx, p, words)
	if err == nil && rule == "" {
		l.heard.note(p, toldWord{})
	}
	return err
}

// UpstreamState is what an API has told of a scope and of those above it, as far as it still holds.
type UpstreamState struct {
	// At is the Redis server's time.
	At time.Time
	// Pauses are outermost first.
	Pauses []UpstreamPause
	// Corrections are in the order of the rules.
	Corrections []Correction
}

// UpstreamPause is how long nothing starts in a scope and below it, since its API said so.
type UpstreamPause struct {
	// Scope is the one that was told of: that asked for, or one above it.
	Scope string
	// Since and Until are by the Redis server's clock.
	Since, Until time.Time
	// Guessed says that the API did not tell for how long.
	Guessed bool
}

// Correction is what counts in the place of a rule's limit.
type Correction struct {
	// Bound is the rule as the policy has it.
	Bound policy.MatchedRule
	// Limit is what counts now: Part of the configured limit, or the API's own.
	Limit int64
	// Part is what counts of the configured limit, in millionths: less than 1,000,000 after
	// refusals, and more where it has grown since.
	Part int64
	// Own is the API's own limit in the rule's window as far as it is adopted, for a bucket what
	// its rate comes to there, 0 where it has told none. Of one that is larger than the configured one refusals leave less, too.
	Own int64
	// Until is when the rule's limit is as configured again, if nothing more is told.
	Until time.Time
}

// UpstreamState tells what holds for a scope. Costs one round trip. Its errors are those of Report.
func (l *Limiter) UpstreamState(ctx context.Context, scope string) (UpstreamState, error) {
	p, err := l.scopes.of(scope)
	if err != nil {
		return UpstreamState{}, err
	}
	levels := levelsOf(p.scope)
	fields := make([]string, 0, len(levels)+len(p.keys))
	for _, level := range levels {
		fields = append(fields, "P"+scopePath(level))
	}
	for i := range p.keys {
		fields = append(fields, "R"+p.ruleName(i))
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	pipe := l.rdb.Pipeline()
	clock, values := pipe.Time(ctx), pipe.HMGet(ctx, toldKey(p.provider), fields...)
	if _, err := pipe.Exec(ctx); err != nil {
		return UpstreamState{}, unavailable(ctx, "ask what was told of", scope, err)
	}
	out := UpstreamState{At: clock.Val()}
	if fixed := l.clock(); fixed != "" {
		out.At = time.UnixMicro(sum(fixed))
	}
	for i, v := range values.Val() {
		if i < len(levels) {
			out.addPause(levels[i], text(v))
		} else {
			out.addCorrection(p.bounds[i-len(levels)], text(v), l.cfg.StartTolerance)
		}
	}
	return out, nil
}

// addPause reads a field of what was told; see lua/include/upstream/upstream.lua.
func (t *UpstreamState) addPause(scope, v string) {
	if len(v) < 3*packed {
		return
	}
	one := UpstreamPause{Scope: scope, Until: time.UnixMicro(number(v)), Since: time.UnixMicro(number(v[packed:])), Guessed: number(v[2*packed:]) > 0}
	if one.Until.After(t.At) {
		t.Pauses = append(t.Pauses, one)
	}
}

// addCorrection does too; see lua/include/upstream/correction.lua.
func (t *UpstreamState) addCorrection(b policy.MatchedRule, v string, pad time.Duration) {
	if len(v) < 9*packed || !correctable(b.Rule) {
		return
	}
	n := make([]int64, len(v)/packed)
	for i := range n {
		n[i] = number(v[i*packed:])
	}
	ends, since, part, grows, own, per, till, raised := n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]
	now, limit, most, top := t.At.UnixMicro(), b.Rule.Limit, reachOf(b, pad), int64(whole)
	if raised > now {
		top = most
	}
	if till > since { // no more than the whole while the API's own limit counts
		part, since = min(whole, part+max(0, min(now, till)-since)*grows/1_000_000), till
	}
	c := Correction{Bound: b, Until: time.UnixMicro(ends), Part: min(top, part+max(0, now-since)*grows/1_000_000)}
	c.Limit = max(1, mostOf(limit, c.Part))
	window := countedIn(b.Rule, pad).Microseconds()
	if b.Rule.Algorithm == policy.TokenBucket && own > 0 && per != window { // a rate
		own, _ = mulDiv(own, window, per)
		own, per = max(1, own), window
	}
	if till > now && own > 0 && per == window {
		c.Own = min(own, mostOf(limit, most))
		c.Limit = max(1, min(c.Own, mostOf(max(limit, c.Own), min(whole, c.Part))))
	}
	if ends > now && c.Limit != limit {
		t.Corrections = append(t.Corrections, c)
	}
}

// levelsOf returns the scope's own path and those above it, outermost first.
func levelsOf(s policy.Scope) (all []string) {
	path := s.String()
	for i := range path {
		if path[i] == '/' {
			all = append(all, path[:i])
		}
	}
	return append(all, path)
}

// reportCache is what this process has told, or was told, so that it says nothing twice: of up to
// maxPlans scopes and rules.
type reportCache struct {
	waiting atomic.Int64 // for a start

	mu     sync.Mutex
	pauses map[string]heardPause // by the key of the scope
	words  map[heardWord]heardNumbers
	looked map[string]time.Time // at the pauses of scopes, by the same
	next   chan struct{}        // closed when a pause is heard of; nil where nobody waits for that
}

type heardPause struct {
	until time.Time // by the Redis server's clock
	here  time.Time // the same by the clock of this process
	told  time.Time
	at    time.Time // when it was in force, by the Redis server's clock
}

// heardWord is a verb that tells of a rule, by its key.
type heardWord struct{ rule, verb string }

type heardNumbers struct {
	numbers [5]int64
	told    time.Time
}

// until tells whether an answer that asks for so long says nothing new.
func (h *reportCache) until(p *compiledScope, now time.Time, wait time.Duration) (until time.Time, told bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	one, known := h.pauses[p.provider+p.path]
	fresh := known && now.Before(one.here) && now.Sub(one.told) < heardFor
	return one.until, fresh && !now.Add(wait-knownPause).After(one.here)
}

// note notes the pause that an answer to the scope's calls asked for: it may count for a level above,
// which those beside the scope have to hear of too.
func (h *reportCache) note(p *compiledScope, one toldWord) {
	if !one.until.IsZero() {
		at := one.until.Add(-one.left)
		h.pause(p.provider+p.path, one.until, at)
		if one.noted != p.path {
			h.pause(p.provider+one.noted, one.until, at)
		}
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pauses, p.provider+p.path)
}

// signalResult tells whether a word of a rule, by its key, is worth telling, and takes it for told: other
// numbers at most once in limitsApart, since an API may tell the limits of its parts by turns, and
// the same when so much time has passed.
func (h *reportCache) signalResult(key string, w signal, again time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, its := time.Now(), heardWord{key, w.verb}
	one, known := h.words[its]
	if known && now.Sub(one.told) < limitsApart || known && one.numbers == w.numbers && now.Sub(one.told) < again {
		return false
	}
	if h.words == nil || len(h.words) >= maxPlans {
		h.words = map[heardWord]heardNumbers{}
	}
	h.words[its] = heardNumbers{w.numbers, now}
	return true
}

const (
	limitsApart = time.Second
	roomApart   = 10 * time.Second
)

// unsaid notes that there was no room for what was told of a rule, by its key: it is told again with an
// answer that comes in roomApart or later, since each time costs a look for room.
func (h *reportCache) unsaid(key, verb string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if its := (heardWord{key, verb}); !h.words[its].told.IsZero() {
		h.words[its] = heardNumbers{told: time.Now().Add(roomApart - limitsApart)}
	}
}

func (h *reportCache) forget(provider, rule string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.words, heardWord{provider + rule, "adopt"})
	delete(h.words, heardWord{provider + rule, "rise"})
}
