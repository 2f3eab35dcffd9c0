package usage

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// perPipeline is how many scopes are sent at once: a provider rarely has more.
const perPipeline = 100

// Flush sends the spending since the last flush, for programs that do not call Run. Costs one round
// trip for each provider, and two more if a provider has more scopes, or a scope more spenders, than
// are kept. Spending that could not be sent is lost, not sent again, because it may have been counted.
// The error wraps Redis's, of one provider if several failed.
func (r *Recorder) Flush(ctx context.Context) error {
	r.flushing.Lock()
	defer r.flushing.Unlock()
	r.mu.Lock()
	spent, since, now := r.current, r.flushed, r.now()
	r.flushed = now
	if len(spent.accounts) == 0 {
		r.mu.Unlock()
		return nil
	}
	r.current = newPeriod()
	r.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	var first error
	faults := 0
	for provider, tallies := range spent.byProvider() {
		err := r.admit(provider, now)
		if err == nil {
			err = r.send(ctx, tallies, since, now)
		}
		if err != nil {
			r.lost.Add(max(tallies[0].all.Units, 0))
			first = cmp.Or(first, err)
			faults++
		}
	}
	if faults > 1 {
		first = fmt.Errorf("%w; and so for %d providers", first, faults)
	}
	r.tell(ctx, first)
	return first
}

// admit refuses a provider if the process has recorded so many that their names are probably made up:
// limits may have a "*" for the provider.
func (r *Recorder) admit(provider string, now time.Time) error {
	if start := hours.start(now); start != r.since || r.providers == nil {
		r.since, r.providers = start, map[string]struct{}{}
	}
	if _, known := r.providers[provider]; !known && len(r.providers) >= mostProviders {
		return fmt.Errorf("usage: more than %d providers in two hours; the rest are not recorded", mostProviders)
	}
	r.providers[provider] = struct{}{}
	return nil
}

// tell logs once when an error begins, and once when it ends.
func (r *Recorder) tell(ctx context.Context, err error) {
	if err != nil {
		r.failed("usage")
	}
	switch {
	case err != nil && !r.failing:
		r.log.WarnContext(ctx, "cannot record usage; limits are not affected", "error", err)
	case err == nil && r.failing:
		r.log.InfoContext(ctx, "usage is recorded again", "lost_units", r.Lost())
	}
	r.failing = err != nil
}

// tally is what was spent from a level and from those below it.
type tally struct {
	scope policy.Scope
	by    map[By]*spending
	all   spending
	ends  Ends

	shadows map[string]*Shadow // of the level itself
}

// byProvider adds up what was spent at each level, and returns the levels where most
// was spent, by provider; the provider's own is the first of them.
func (p *period) byProvider() map[string][]*tally {
	levels := map[policy.Scope]*tally{}
	for _, a := range p.accounts {
		for n := 1; n <= a.scope.Len(); n++ {
			level := a.scope.Prefix(n)
			t := levels[level]
			if t == nil {
				t = &tally{scope: level, by: map[By]*spending{}}
				levels[level] = t
			}
			t.all.addAll(a.all)
			t.ends.add(a.ends)
			if level == a.scope {
				t.shadows = a.shadows
			}
			for by, sum := range a.by {
				if t.by[by] == nil {
					t.by[by] = &spending{}
				}
				t.by[by].addAll(*sum)
			}
		}
	}
	providers := map[string][]*tally{}
	for _, t := range levels {
		providers[t.scope.Provider()] = append(providers[t.scope.Provider()], t)
	}
	for name, tallies := range providers {
		slices.SortFunc(tallies, func(a, b *tally) int {
			// What came back may make a level's sum less than that of one below it.
			return cmp.Or(cmp.Compare(min(a.scope.Len(), 2), min(b.scope.Len(), 2)),
				cmp.Compare(b.all.Units, a.all.Units), cmp.Compare(a.scope.String(), b.scope.String()))
		})
		providers[name] = tallies[:min(len(tallies), mostScopes)]
	}
	return providers
}

// most returns the largest spenders.
func (t *tally) most() []By {
	return slices.SortedFunc(maps.Keys(t.by), func(a, b By) int {
		return cmp.Or(cmp.Compare(t.by[b].Units, t.by[a].Units), cmp.Compare(a.name(), b.name()))
	})[:min(len(t.by), mostBy)]
}

// send sends what was spent from scopes of one provider in a period.
func (r *Recorder) send(ctx context.Context, tallies []*tally, since, now time.Time) error {
	provider := wire.ScopeKey(r.prefix, tallies[0].scope.Prefix(1).String())
	for part := range slices.Chunk(tallies, perPipeline) {
		b := batch{rdb: r.rdb, prefix: r.prefix, provider: provider, since: since, now: now}
		if err := b.send(ctx, part); err != nil {
			return fmt.Errorf("usage: record what was spent from %q: %w", tallies[0].scope.Provider(), err)
		}
	}
	return nil
}

// batch is one pipeline, and what has to be made smaller after it.
type batch struct {
	rdb      redis.UniversalClient
	prefix   string
	provider string    // what its keys begin with
	since    time.Time // of the flush before
	now      time.Time

	used   map[string]*redis.IntCmd // how many fields each hash has
	units  map[string]*redis.IntCmd // and each of units
	scopes map[grain]*redis.IntCmd  // how many scopes a slot has
}

func (b *batch) send(ctx context.Context, tallies []*tally) error {
	b.used, b.units, b.scopes = map[string]*redis.IntCmd{}, map[string]*redis.IntCmd{}, map[grain]*redis.IntCmd{}
	pipe := b.rdb.Pipeline()
	for _, g := range grains {
		start := g.start(b.now)
		ttl := g.ttl(start, b.now)
		scopes := g.scopesKey(b.provider, start)
		for _, t := range tallies {
			pipe.ZIncrBy(ctx, scopes, float64(t.all.Units), t.scope.String())
			b.add(ctx, pipe, g.usedKey(wire.ScopeKey(b.prefix, t.scope.String()), start), t, ttl)
			b.addUnits(ctx, pipe, g.unitsKey(wire.ScopeKey(b.prefix, t.scope.String()), start), t, ttl)
			b.addShadows(ctx, pipe, g.shadowsKey(wire.ScopeKey(b.prefix, t.scope.String()), start), t, ttl)
		}
		pipe.PExpire(ctx, scopes, ttl)
		b.scopes[g] = pipe.ZCard(ctx, scopes)
	}
	for _, t := range tallies {
		b.addFine(ctx, pipe, t)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	return b.shrink(ctx)
}

func (b *batch) add(ctx context.Context, pipe redis.Pipeliner, key string, t *tally, ttl time.Duration) {
	pipe.HIncrBy(ctx, key, fieldUnits, t.all.Units)
	pipe.HIncrBy(ctx, key, fieldTasks, t.all.Tasks)
	if t.ends.Failed > 0 {
		pipe.HIncrBy(ctx, key, fieldFailed, t.ends.Failed)
	}
	if t.ends.Refused > 0 {
		pipe.HIncrBy(ctx, key, fieldRefused, t.ends.Refused)
	}
	last := make([]any, 0, 2*mostBy)
	for _, by := range t.most() {
		name := ":" + by.name()
		pipe.HIncrBy(ctx, key, fieldUnits+name, t.by[by].Units)
		pipe.HIncrBy(ctx, key, fieldTasks+name, t.by[by].Tasks)
		last = append(last, fieldLast+name, b.now.Unix())
	}
	if len(last) > 0 {
		pipe.HSet(ctx, key, last...)
	}
	pipe.PExpire(ctx, key, ttl)
	b.used[key] = pipe.HLen(ctx, key)
}

// addUnits sends what was spent by unit, if anything was.
func (b *batch) addUnits(ctx context.Context, pipe redis.Pipeliner, key string, t *tally, ttl time.Duration) {
	if len(t.all.units) == 0 {
		return
	}
	spenders := t.most()
	for _, unit := range most(t.all.units, mostKinds) {
		pipe.HIncrBy(ctx, key, unit, t.all.units[unit])
		for _, by := range spenders {
			if n := t.by[by].units[unit]; n != 0 {
				pipe.HIncrBy(ctx, key, unit+":"+by.name(), n)
			}
		}
	}
	pipe.PExpire(ctx, key, ttl)
	b.units[key] = pipe.HLen(ctx, key)
}

func (b *batch) addShadows(ctx context.Context, pipe redis.Pipeliner, key string, t *tally, ttl time.Duration) {
	for rule, sum := range t.shadows {
		pipe.HIncrBy(ctx, key, fieldTasks+":"+wire.Escape(rule), sum.Starts)
		pipe.HIncrBy(ctx, key, fieldWaits+":"+wire.Escape(rule), sum.Waits)
	}
	if len(t.shadows) > 0 {
		pipe.PExpire(ctx, key, ttl)
	}
}

// shrink takes away the smallest where there are more than are kept. Totals stay, so
// that what was taken away counts as that of others, whoever else writes meanwhile.
func (b *batch) shrink(ctx context.Context) error {
	look, popped := b.rdb.Pipeline(), map[grain]*redis.ZSliceCmd{}
	used := tooLarge(ctx, look, b.used, mostFields)
	units := tooLarge(ctx, look, b.units, mostUnitFields)
	for g, n := range b.scopes {
		if more := n.Val() - mostScopes; more > 0 {
			popped[g] = look.ZPopMin(ctx, g.scopesKey(b.provider, g.start(b.now)), more)
		}
	}
	if look.Len() == 0 {
		return nil
	}
	if _, err := look.Exec(ctx); err != nil {
		return err
	}
	take := b.rdb.Pipeline()
	for key, all := range used {
		if small := smallest(all.Val()); len(small) > 0 {
			take.HDel(ctx, key, small...)
		}
	}
	for key, all := range units {
		if small := smallestUnits(all.Val()); len(small) > 0 {
			take.HDel(ctx, key, small...)
		}
	}
	for g, list := range popped {
		for _, z := range list.Val() {
			if scope, err := policy.ParseScope(fmt.Sprint(z.Member)); err == nil {
				key, start := wire.ScopeKey(b.prefix, scope.String()), g.start(b.now)
				take.Del(ctx, g.usedKey(key, start), g.unitsKey(key, start), g.shadowsKey(key, start))
				if g == minutes {
					take.Del(ctx, fineKey(key, start))
				}
			}
		}
	}
	_, err := take.Exec(ctx)
	return err
}

// tooLarge asks for the hashes that have more fields than they may.
func tooLarge(ctx context.Context, look redis.Pipeliner, sizes map[string]*redis.IntCmd, bound int64) map[string]*redis.MapStringStringCmd {
	fields := map[string]*redis.MapStringStringCmd{}
	for key, n := range sizes {
		if n.Val() > bound {
			fields[key] = look.HGetAll(ctx, key)
		}
	}
	return fields
}

// smallest returns the fields of those beyond the mostBy who spent most.
func smallest(fields map[string]string) (small []string) {
	units := map[string]int64{}
	for field, text := range fields {
		kind, name, of := strings.Cut(field, ":")
		if !of {
			continue
		}
		n := int64(0)
		if kind == fieldUnits {
			n, _ = strconv.ParseInt(text, 10, 64)
		}
		units[name] += n
	}
	for _, name := range most(units, len(units))[min(len(units), mostBy):] {
		small = append(small, fieldUnits+":"+name, fieldTasks+":"+name, fieldLast+":"+name)
	}
	return small
}
