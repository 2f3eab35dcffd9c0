package usage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Longest is how far back Read can look.
const Longest = 24 * time.Hour

// Report is what was spent from a scope and from those below it.
type Report struct {
	Scope policy.Scope
	// From is where the count begins: where the first slot does, at most 5 minutes
	// before what was asked for, and 2 hours where that is more than an hour ago.
	From, To time.Time
	// All is everything that was recorded, and Other what of it is not listed in
	// Spenders, who are those that spent most.
	All, Other Sum
	// ByUnit is what was spent of other units than requests, by name, and OtherByUnit what
	// of it is not listed in Spenders. They are nil where nothing costs by unit.
	ByUnit, OtherByUnit map[string]int64
	Spenders            []Spender // most units first
	// Shadows are the shadow rules that count at the scope itself and were asked, by name.
	Shadows []Shadow
}

// Spender is who spent, and what.
type Spender struct {
	By
	Sum
	// ByUnit is what it spent of other units than requests, nil for none.
	ByUnit map[string]int64
	// Last is when it spent last, to within the ten seconds between two flushes.
	Last time.Time
}

// Read tells who spent from a scope within the time that has passed since, up to
// Longest. Of cfg it needs the Prefix. It costs one round trip with at most 42
// commands. A scope that nothing is known of has an empty report: nothing was spent
// from it, or too little to be among the thousand of its provider that are kept.
//
// The error is a *policy.ScopeError, tells what since may be, or wraps Redis's.
func Read(ctx context.Context, rdb redis.UniversalClient, cfg Config, scope string, since time.Duration) (Report, error) {
	s, err := policy.ParseScope(scope)
	if err != nil {
		return Report{}, err
	}
	prefix, err := cfg.prefix()
	if err != nil {
		return Report{}, err
	}
	if rdb == nil {
		return Report{}, errors.New("usage: Read needs a Redis client, got nil")
	}
	if since <= 0 || since > Longest {
		return Report{}, fmt.Errorf("usage: cannot look back %s; use more than 0 and at most %s", since, Longest)
	}
	g := grainFor(since)
	now := time.Now()
	first, last := g.start(now.Add(-since)), g.start(now)
	key := throttle.ScopeKey(prefix, s)
	pipe := rdb.Pipeline()
	var slots, units, shadows []*redis.MapStringStringCmd
	for start := first; start <= last; start += int64(g.every / time.Second) {
		slots = append(slots, pipe.HGetAll(ctx, g.usedKey(key, start)))
		units = append(units, pipe.HGetAll(ctx, g.unitsKey(key, start)))
		shadows = append(shadows, pipe.HGetAll(ctx, g.shadowsKey(key, start)))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return Report{}, fmt.Errorf("usage: read who uses %q: %w", scope, err)
	}
	r := Report{Scope: s, From: time.Unix(first, 0), To: now}
	by := map[By]*Spender{}
	for _, slot := range slots {
		r.read(slot.Val(), by)
	}
	for _, slot := range units {
		r.readUnits(slot.Val(), by)
	}
	r.finish(by)
	r.Shadows = readShadows(shadows)
	return r, nil
}

// grainFor returns the finest slots that reach back so far.
func grainFor(since time.Duration) grain {
	for _, g := range grains {
		if since <= g.reach {
			return g
		}
	}
	return grains[len(grains)-1]
}

// read adds what one slot has.
func (r *Report) read(fields map[string]string, by map[By]*Spender) {
	for field, text := range fields {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			continue // nobody of ours wrote it
		}
		kind, name, of := strings.Cut(field, ":")
		if !of {
			r.All.note(kind, n)
			continue
		}
		who, ok := parseBy(name)
		if !ok {
			continue
		}
		s := by[who]
		if s == nil {
			s = &Spender{By: who}
			by[who] = s
		}
		s.note(kind, n)
		if at := time.Unix(n, 0); kind == fieldLast && at.After(s.Last) {
			s.Last = at
		}
	}
}

func readShadows(slots []*redis.MapStringStringCmd) (all []Shadow) {
	by := map[string]*Shadow{}
	for _, slot := range slots {
		for field, text := range slot.Val() {
			n, err := strconv.ParseInt(text, 10, 64)
			kind, name, of := strings.Cut(field, ":")
			if err != nil || !of {
				continue // nobody of ours wrote it
			}
			if by[name] == nil {
				by[name] = &Shadow{Rule: throttle.UnescapeName(name)}
			}
			switch kind {
			case fieldTasks:
				by[name].Starts += n
			case fieldWaits:
				by[name].Waits += n
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(by)) {
		all = append(all, *by[name])
	}
	return all
}

func (s *Sum) note(kind string, n int64) {
	switch kind {
	case fieldUnits:
		s.Units += n
	case fieldTasks:
		s.Tasks += n
	}
}

// spent is nothing where more came back than was spent.
func (s Sum) spent() Sum { return Sum{max(s.Units, 0), max(s.Tasks, 0)} }

// finish lists who spent, and finds what others did.
func (r *Report) finish(by map[By]*Spender) {
	r.All, r.ByUnit = r.All.spent(), spentOf(r.ByUnit)
	for _, s := range by {
		s.Sum, s.ByUnit = s.Sum.spent(), spentOf(s.ByUnit)
	}
	r.Other = r.All
	for _, s := range slices.SortedFunc(maps.Values(by), func(a, b *Spender) int {
		return cmp.Or(cmp.Compare(b.Units, a.Units), cmp.Compare(b.Tasks, a.Tasks), cmp.Compare(a.name(), b.name()))
	}) {
		if s.Units > 0 || s.Tasks > 0 && s.ByUnit != nil { // otherwise taken away while it was written
			r.Spenders = append(r.Spenders, *s)
			r.Other.Units -= s.Units
			r.Other.Tasks -= s.Tasks
		}
	}
	r.Other = r.Other.spent()
	r.OtherByUnit = r.otherUnits()
}
