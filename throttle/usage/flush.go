package usage

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// perPipeline is how many scopes are sent at once. A provider rarely has more.
const perPipeline = 100

// Flush sends the spending since the last flush, for programs that do not call Run. Costs one round trip for each provider, and
// two more if a provider has more scopes, or a scope more spenders, than are kept. Spending that could not be sent is lost: it
// may have been counted. The error wraps Redis's, of one provider if several failed.
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
	for provider, accounts := range spent.byProvider() {
		err := r.admit(provider, now)
		if err == nil {
			err = r.send(ctx, accounts, since, now)
		}
		if err != nil {
			r.lost.Add(max(accounts[0].all.Units, 0))
			first = cmp.Or(first, err)
			faults++
		}
	}
	if faults > 1 {
		first = fmt.Errorf("%w; and so for %d providers", first, faults)
	}
	r.logChange(ctx, first)
	return first
}

// admit refuses a provider if the process has recorded so many that their names are probably made up.
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

// logChange logs once when an error begins, and once when it ends.
func (r *Recorder) logChange(ctx context.Context, err error) {
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

// byProvider adds up what was spent at each level, and returns the levels where most was spent, by provider. The provider itself
// is first.
func (p *period) byProvider() map[string][]*account {
	levels := map[policy.Scope]*account{}
	for _, a := range p.accounts {
		for n := a.first; n <= a.scope.Len(); n++ {
			scope := a.scope.Prefix(n)
			level := levels[scope]
			if level == nil {
				level = &account{scope: scope, by: map[By]*spending{}}
				levels[scope] = level
			}
			level.all.addAll(a.all)
			level.ends.add(a.ends)
			if scope == a.scope && a.shadows != nil {
				level.shadows = a.shadows
			}
			for by, sum := range a.by {
				if level.by[by] == nil {
					level.by[by] = &spending{}
				}
				level.by[by].addAll(*sum)
			}
		}
	}
	providers := map[string][]*account{}
	for _, a := range levels {
		providers[a.scope.Provider()] = append(providers[a.scope.Provider()], a)
	}
	for name, accounts := range providers {
		slices.SortFunc(accounts, func(a, b *account) int {
			// What came back may make a level's sum less than that of one below it.
			return cmp.Or(cmp.Compare(min(a.scope.Len(), 2), min(b.scope.Len(), 2)),
				cmp.Compare(b.all.Units, a.all.Units), cmp.Compare(a.scope.String(), b.scope.String()))
		})
		providers[name] = accounts[:min(len(accounts), mostScopes)]
	}
	return providers
}

// fields returns by how much the fields of an account grow in each slot, and the fields that are set, each with its value.
func (a *account) fields(now time.Time) (grow map[string]int64, last []any) {
	grow = map[string]int64{fieldUnits: a.all.Units, fieldTasks: a.all.Tasks, fieldFailed: a.ends.Failed, fieldRefused: a.ends.Refused}
	for unit, n := range a.all.units {
		grow[unitMark+unit] = n
	}
	spenders := slices.SortedFunc(maps.Keys(a.by), func(x, y By) int {
		return cmp.Or(cmp.Compare(a.by[y].Units, a.by[x].Units), cmp.Compare(x.name(), y.name()))
	})
	for _, by := range spenders[:min(len(spenders), mostBy)] {
		name, sum := ":"+by.name(), a.by[by]
		grow[fieldUnits+name], grow[fieldTasks+name] = sum.Units, sum.Tasks
		for unit, n := range sum.units {
			grow[unitMark+unit+name] = n
		}
		last = append(last, fieldLast+name, now.Unix())
	}
	for rule, sum := range a.shadows {
		grow[fieldStarts+":"+wire.Escape(rule)], grow[fieldWaits+":"+wire.Escape(rule)] = sum.Starts, sum.Waits
	}
	maps.DeleteFunc(grow, func(_ string, n int64) bool { return n == 0 })
	return grow, last
}

// send sends what was spent from scopes of one provider in a period.
func (r *Recorder) send(ctx context.Context, accounts []*account, since, now time.Time) error {
	provider := wire.ScopeKey(r.prefix, accounts[0].scope.Provider())
	for part := range slices.Chunk(accounts, perPipeline) {
		b := batch{rdb: r.rdb, prefix: r.prefix, provider: provider, since: since, now: now, used: map[string]*redis.IntCmd{}, scopes: map[grain]*redis.IntCmd{}}
		if err := b.send(ctx, part); err != nil {
			return fmt.Errorf("usage: record what was spent from %q: %w", accounts[0].scope.Provider(), err)
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
	scopes map[grain]*redis.IntCmd  // how many scopes a slot has
}

func (b *batch) send(ctx context.Context, accounts []*account) error {
	pipe := b.rdb.Pipeline()
	for _, a := range accounts {
		grow, last := a.fields(b.now)
		for _, g := range grains {
			start := g.start(b.now)
			key := g.usedKey(wire.ScopeKey(b.prefix, a.scope.String()), start)
			for field, n := range grow {
				pipe.HIncrBy(ctx, key, field, n)
			}
			if len(last) > 0 {
				pipe.HSet(ctx, key, last...)
			}
			pipe.PExpire(ctx, key, g.ttl(start, b.now))
			b.used[key] = pipe.HLen(ctx, key)
			pipe.ZIncrBy(ctx, g.scopesKey(b.provider, start), float64(a.all.Units), a.scope.String())
		}
		b.addFine(ctx, pipe, a)
	}
	for _, g := range grains {
		start := g.start(b.now)
		pipe.PExpire(ctx, g.scopesKey(b.provider, start), g.ttl(start, b.now))
		b.scopes[g] = pipe.ZCard(ctx, g.scopesKey(b.provider, start))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	return b.shrink(ctx)
}

// longestPeriod bounds the time over which one flush spreads its sums.
const longestPeriod = time.Minute

// addFine divides what was spent from a scope among fine slots, by the part of the period that each has.
func (b *batch) addFine(ctx context.Context, pipe redis.Pipeliner, a *account) {
	from := b.since
	if oldest := b.now.Add(-longestPeriod); from.Before(oldest) {
		from = oldest
	}
	sent := Sum{}
	for at, more := fine.start(from), true; more; at += int64(fine.every / time.Second) {
		end, upTo := time.Unix(at, 0).Add(fine.every), a.all.Sum
		if more = end.Before(b.now); more {
			part := float64(end.Sub(from)) / float64(b.now.Sub(from))
			upTo = Sum{int64(float64(upTo.Units) * part), int64(float64(upTo.Tasks) * part)}
		}
		key, units, tasks := fine.sums(wire.ScopeKey(b.prefix, a.scope.String()), at)
		for field, n := range map[string]int64{units: upTo.Units - sent.Units, tasks: upTo.Tasks - sent.Tasks} {
			if n != 0 {
				pipe.HIncrBy(ctx, key, field, n)
			}
		}
		pipe.PExpire(ctx, key, end.Add(fine.reach+spare).Sub(b.now))
		sent = upTo
	}
}

// shrink removes the smallest where there are more than are kept. Totals stay, so that what was removed counts as that of others.
func (b *batch) shrink(ctx context.Context) error {
	look, large, popped := b.rdb.Pipeline(), map[string]*redis.MapStringStringCmd{}, map[grain]*redis.ZSliceCmd{}
	for key, n := range b.used {
		if n.Val() > mostFields {
			large[key] = look.HGetAll(ctx, key)
		}
	}
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
	remove := b.rdb.Pipeline()
	for key, fields := range large {
		if small := smallest(fields.Val()); len(small) > 0 {
			remove.HDel(ctx, key, small...)
		}
	}
	for g, list := range popped {
		for _, z := range list.Val() {
			key, start := wire.ScopeKey(b.prefix, fmt.Sprint(z.Member)), g.start(b.now)
			remove.Del(ctx, g.usedKey(key, start))
			if g == minutes {
				remove.Del(ctx, fineKey(key, start))
			}
		}
	}
	_, err := remove.Exec(ctx)
	return err
}

// smallest returns the fields of spenders beyond the mostBy that spent most, and of units beyond mostKinds.
func smallest(fields map[string]string) (small []string) {
	spenders, units := map[string]int64{}, map[string]int64{}
	for field, text := range fields {
		kind, name, of := strings.Cut(field, ":")
		unit, isUnit := strings.CutPrefix(kind, unitMark)
		switch {
		case isUnit && !of:
			units[unit] = number(text)
		case of && kind == fieldUnits:
			spenders[name] = number(text)
		case of && kind == fieldTasks:
			spenders[name] += 0
		}
	}
	kinds, largest := most(units, mostKinds), most(spenders, mostBy)
	for field := range fields {
		kind, name, of := strings.Cut(field, ":")
		unit, isUnit := strings.CutPrefix(kind, unitMark)
		isSpender := of && kind != fieldStarts && kind != fieldWaits
		if isUnit && !slices.Contains(kinds, unit) || isSpender && !slices.Contains(largest, name) {
			small = append(small, field)
		}
	}
	return small
}

// most returns the first few keys by their values, largest first.
func most(values map[string]int64, n int) []string {
	return slices.SortedFunc(maps.Keys(values), func(a, b string) int {
		return cmp.Or(cmp.Compare(values[b], values[a]), cmp.Compare(a, b))
	})[:min(len(values), n)]
}
