package throttle

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

const (
	defaultTierTTL = time.Minute
	// tierBound is how long Config.TierOf may take. After it has failed, no caller waits for it for tierRetry, and a name is asked for
	// again after as long.
	tierBound, tierRetry = time.Second, 5 * time.Second
	// maxTiers is the number of names whose tiers are kept, tiersDropped how many make room for others at once, and tierCalls how many are
	// asked for at once in the background.
	maxTiers, tiersDropped, tierCalls = 100_000, 1000, 8
	tierLogEach                       = time.Minute
)

// TierTrouble is a tier that could not be known, or that the policy does not have.
type TierTrouble struct {
	Name string // payments/acme
	// Tier is the tier that counts: the last known one if TierOf failed, and "" if the policy has none of the name Unknown.
	Tier    string
	Unknown string
	Err     error // of TierOf
}

// tiers remembers the tiers of names. An entry costs little more than its name.
type tiers struct {
	of       policy.TierOf
	ttl      time.Duration
	observer Observer
	log      *slog.Logger
	limiter  *Limiter

	began time.Time
	slots chan struct{} // of the asks in the background

	mu      sync.Mutex
	known   map[string]knownTier
	words   []string // the tiers, by their numbers in entries
	failing int32    // until when no caller waits for an answer
	logged  time.Time
}

// knownTier is an entry: the number of a tier, and when to ask again. Times are seconds since tiers.began.
type knownTier struct {
	tier uint16
	due  int32
}

// newTiers returns nil without Config.TierOf.
func newTiers(l *Limiter) *tiers {
	cfg := l.cfg
	if cfg.TierOf == nil {
		return nil
	}
	return &tiers{
		limiter: l,
		of:      cfg.TierOf, ttl: cfg.TierTTL, observer: cfg.Observer, log: cfg.Logger, began: time.Now(),
		slots: make(chan struct{}, tierCalls), known: map[string]knownTier{}, words: []string{""},
	}
}

// at is a moment as entries have it, d from now.
func (t *tiers) at(d time.Duration) int32 {
	return int32(min(time.Since(t.began)/time.Second+d/time.Second, math.MaxInt32)) //nolint:gosec // not below 0
}

// tier returns the tier of a name. The first time it asks, in the caller's goroutine.
func (t *tiers) tier(name policy.Scope) string {
	tier, ask := t.look(name)
	if ask {
		return t.ask(context.Background(), name)
	}
	return tier
}

// look returns the tier of a name, and whether the caller is to ask for it: it is not known, and TierOf has not failed lately.
func (t *tiers) look(name policy.Scope) (tier string, ask bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, is := t.known[name.String()]
	if !is && t.at(0) < t.failing {
		t.put(name, knownTier{due: t.failing})
		is = true
	}
	return t.words[e.tier], !is
}

// touch has the tiers of names asked for in the background that are due.
func (t *tiers) touch(names []policy.Scope) {
	for _, name := range t.take(names) {
		select {
		case t.slots <- struct{}{}:
			go func() {
				defer func() { <-t.slots }()
				t.ask(context.Background(), name)
			}()
		default: // a later call does
		}
	}
}

// take returns the names that are due. Other callers do not get them for a while.
func (t *tiers) take(names []policy.Scope) (due []policy.Scope) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.at(0)
	for _, name := range names {
		if e, is := t.known[name.String()]; now >= e.due && (is || now >= t.failing) {
			t.put(name, knownTier{e.tier, t.at(tierRetry)})
			due = append(due, name)
		}
	}
	return due
}

// put keeps an entry. It makes room by dropping some others, which are asked for again if they are used, and with them what was compiled:
// nothing would say any more that their tiers have changed. t.mu is held.
func (t *tiers) put(name policy.Scope, e knownTier) {
	if _, is := t.known[name.String()]; !is && len(t.known) >= maxTiers {
		for other := range t.known {
			if delete(t.known, other); len(t.known) <= maxTiers-tiersDropped {
				break
			}
		}
		t.limiter.scopes.Forget(policy.Scope{})
	}
	t.known[strings.Clone(name.String())] = e // the memory of a task can be freed
}

// askAll asks for the tiers of names, some at once, while goOn.
func (t *tiers) askAll(ctx context.Context, names []policy.Scope, goOn func() bool) {
	var wg sync.WaitGroup
	for worker := range min(tierCalls, len(names)) {
		wg.Go(func() {
			for i := worker; i < len(names) && ctx.Err() == nil && goOn(); i += tierCalls {
				t.ask(ctx, names[i])
			}
		})
	}
	wg.Wait()
}

// answers reports that TierOf has not failed lately.
func (t *tiers) answers() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at(0) >= t.failing
}

// call calls TierOf. A panic is an error: in the background it would end the process.
func (t *tiers) call(ctx context.Context, name policy.Scope) (tier string, err error) {
	defer func() {
		if x := recover(); x != nil {
			err = fmt.Errorf("throttle: Config.TierOf panics: %v", x)
		}
	}()
	return t.of(ctx, name)
}

// ask asks for the tier of a name, and returns the one that counts.
func (t *tiers) ask(ctx context.Context, name policy.Scope) string {
	bound, cancel := context.WithTimeout(ctx, tierBound)
	defer cancel()
	tier, err := t.call(bound, name)
	trouble := TierTrouble{Name: name.String(), Err: err}
	due := t.at(t.ttl)
	if err == nil && tier != "" && !slices.Contains(t.limiter.Policy().Tiers(name.Prefix(name.Len()-1).String()), tier) {
		trouble.Unknown, tier, due = tier, "", t.at(tierRetry)
	}
	t.mu.Lock()
	was, had := t.known[name.String()]
	if err != nil && ctx.Err() != nil { // the caller's end says nothing of TierOf
		defer t.mu.Unlock()
		return t.words[was.tier]
	}
	if err != nil {
		t.failing, due, tier = t.at(tierRetry), t.at(tierRetry), t.words[was.tier]
	}
	trouble.Tier = tier
	changed := had && t.words[was.tier] != tier // else nothing was compiled under another one
	number := slices.Index(t.words, tier)
	if number < 0 {
		number, t.words = len(t.words), append(t.words, tier)
	}
	t.put(name, knownTier{uint16(number), due}) //nolint:gosec // a policy has fewer
	t.mu.Unlock()
	if err != nil || trouble.Unknown != "" {
		t.report(trouble)
	}
	if changed {
		t.limiter.scopes.Forget(name)
	}
	return tier
}

// report reports what is wrong with a tier, and logs that once a minute.
func (t *tiers) report(trouble TierTrouble) {
	if t.observer != nil {
		t.observer.TierTrouble(trouble)
	}
	t.mu.Lock()
	quiet := !t.logged.IsZero() && time.Since(t.logged) < tierLogEach
	if !quiet {
		t.logged = time.Now()
	}
	t.mu.Unlock()
	switch {
	case quiet:
	case trouble.Err != nil:
		t.log.Error("cannot ask for the tier of a name; the last known tier counts", "name", trouble.Name, "tier", trouble.Tier, "error", trouble.Err)
	default:
		t.log.Error(`a name has a tier that the limits do not have; the rules of "*" count`, "name", trouble.Name, "tier", trouble.Unknown)
	}
}

// TierOf returns what answers as this limiter knows tiers, nil without Config.TierOf: for a limiter of another policy.
func (l *Limiter) TierOf() policy.TierOf {
	if l.tiers == nil {
		return nil
	}
	return func(_ context.Context, name policy.Scope) (string, error) { return l.tiers.tier(name), nil }
}

// TierTTL returns Config.TierTTL.
func (l *Limiter) TierTTL() time.Duration { return l.cfg.TierTTL }

// RenewTiers asks Config.TierOf again: for the tiers of some names, such as payments/acme, or without names for those of names below
// which tasks of the provider wait and that are due by Config.TierTTL. Waiting tasks then start by the rules of their tiers. Package
// worker calls it without names, and policystore.Follow after changes. It costs a call of TierOf for each name, and one round trip for
// each 1000 scopes in which tasks of the provider wait. The error is that of ctx, or wraps ErrUnavailable.
func (l *Limiter) RenewTiers(ctx context.Context, provider string, names ...string) error {
	if l.tiers == nil || !l.Policy().Tiered() {
		return ctx.Err()
	}
	var parsed []policy.Scope
	named := map[policy.Scope]bool{}
	for _, name := range names {
		if s, err := policy.ParseScope(name); err == nil && s.Provider() == provider {
			parsed, named[s] = append(parsed, s), true
		}
	}
	l.tiers.askAll(ctx, parsed, func() bool { return true })
	return l.list.Renew(ctx, provider, func(scopes []policy.Scope) []policy.Scope {
		if len(names) > 0 {
			return slices.DeleteFunc(scopes, func(s policy.Scope) bool {
				n := s.Len()
				for n > 0 && !named[s.Prefix(n)] {
					n--
				}
				return n == 0
			})
		}
		var tiered []policy.Scope
		for _, s := range scopes {
			tiered = append(tiered, l.Policy().TieredNames(s)...)
		}
		l.tiers.askAll(ctx, l.tiers.take(tiered), l.tiers.answers)
		return scopes
	})
}
