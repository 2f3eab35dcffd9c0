package throttle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/throttle/policy"
)

// ErrGrantNotFound says that no grant is stored under an id of a scope: none was saved, its time has
// ended, or it was refunded.
var ErrGrantNotFound = errors.New("throttle: no grant is kept under this id")

// kept is a grant as Redis keeps it. Places of concurrency rules are no part of it: they
// end with their run.
type kept struct {
	ID    string     `json:"id"`
	Start int64      `json:"start"` // by the server's clock, µs
	Lasts int64      `json:"lasts"` // µs; see plan.settles
	Rules []keptRule `json:"rules"`
}

type keptRule struct {
	Key   string `json:"key"` // without the provider's prefix
	Kind  string `json:"kind"`
	Unit  string `json:"unit"`
	Units int64  `json:"units"`
	Place int64  `json:"place"`
	Over  int64  `json:"over,omitempty"` // see held
}

// SaveGrant stores a grant in Redis under an id, such as a task's, for the time stay, so that any
// process can find it with LoadGrant. It is for costs that become known later, by a webhook or a batch
// API. A grant that is never settled stays charged as estimated, and its units come back by the clock.
// It replaces another grant that is stored under the id. Units can be given back for a day at most,
// however long the grant is stored; what is settled counts as long as the grant is stored. Places of
// concurrency rules are not stored.
//
// The id has 1 to 1024 bytes. The error says what is invalid, or wraps ErrUnavailable. Costs one round
// trip, none for a grant that took nothing or was made in an outage.
func (l *Limiter) SaveGrant(ctx context.Context, g Grant, id string, stay time.Duration) error {
	if id == "" || len(id) > maxTicketBytes {
		return fmt.Errorf("throttle: SaveGrant: the id has %d bytes; write 1 to %d", len(id), maxTicketBytes)
	}
	if stay < time.Millisecond || stay > policy.MaxTime {
		return fmt.Errorf("throttle: SaveGrant: it would stay for %s; write 1ms to %s", stay, policy.MaxTime)
	}
	if g.Zero() || g.local {
		return nil
	}
	p := g.plan
	k := kept{ID: g.id, Start: g.start, Lasts: g.holds(p).Microseconds(), Rules: []keptRule{}}
	all := l.held(g)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		h := all[key]
		k.Rules = append(k.Rules, keptRule{key[len(p.provider):], string(h.algorithm), h.unit, h.units, h.place, h.over})
	}
	text, err := json.Marshal(k)
	if err != nil {
		return fmt.Errorf("throttle: SaveGrant: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	g.told.keep(time.Now().Add(stay))
	_, err = l.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, l.keptKey(p.scope, id), text, stay)
		pipe.PExpire(ctx, p.settled(g.id), g.remembered(p))
		return nil
	})
	if err != nil {
		return unavailable(ctx, "keep a grant of", g.scope, err)
	}
	return nil
}

// LoadGrant returns a grant that SaveGrant, in any process, has stored under an id of a scope, to
// Settle or Refund it. A Refund also ends its storage. It leaves out rules that are gone or have
// another algorithm by now. The error is a *policy.ScopeError, *policy.UnmatchedError or
// ErrGrantNotFound, or wraps ErrUnavailable. Costs one round trip.
func (l *Limiter) LoadGrant(ctx context.Context, scope, id string) (Grant, error) {
	p, err := l.scopes.of(scope)
	if err != nil {
		return Grant{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	key := l.keptKey(p.scope, id)
	var text *redis.StringCmd
	var left *redis.DurationCmd
	err = redisread.FromMaster(ctx, l.rdb, func(pipe redis.Pipeliner) error {
		text, left = pipe.Get(ctx, key), pipe.PTTL(ctx, key)
		return nil
	})
	if errors.Is(err, redis.Nil) {
		return Grant{}, fmt.Errorf("%w: %s of %s", ErrGrantNotFound, diag.Quote(id), diag.Quote(scope))
	} else if err != nil {
		return Grant{}, unavailable(ctx, "look for a grant of", scope, err)
	}
	var k kept
	if err := json.Unmarshal([]byte(text.Val()), &k); err != nil || k.ID == "" {
		return Grant{}, fmt.Errorf("%w: %s of %s cannot be read", ErrGrantNotFound, diag.Quote(id), diag.Quote(scope))
	}
	g := l.grantOf(p, k, key)
	g.told.keep(time.Now().Add(left.Val()))
	return g, nil
}

// grantOf makes a kept grant one again, under the rules as they are by now.
func (l *Limiter) grantOf(p *compiledScope, k kept, key string) Grant {
	g := Grant{scope: p.scope.String(), id: k.ID, kept: key, told: &settled{}, start: k.Start, lasts: us(k.Lasts), cost: price{by: []int64{}}}
	var bounds []policy.MatchedRule
	for _, r := range k.Rules {
		i := slices.Index(p.keys, p.provider+r.Key)
		if i < 0 || string(p.bounds[i].Rule.Algorithm) != r.Kind || p.bounds[i].Rule.Unit != r.Unit {
			continue
		}
		b := p.bounds[i]
		b.Rule.Active = nil // it held when it was charged
		bounds = append(bounds, b)
		g.cost.by, g.places = append(g.cost.by, r.Units), append(g.places, r.Place)
		if r.Over > 0 {
			g.told.note(p.keys[i], held{p.bounds[i].Rule.Algorithm, r.Unit, r.Units, 0, r.Over})
		}
	}
	g.plan = compileScope(l.scopes.keys, p.scope, bounds, l.cfg.StartTolerance, l.scopes.now(p.provider))
	g.plan.made = p.made
	return g
}

func (l *Limiter) keptKey(s policy.Scope, id string) string {
	return ScopeKey(l.cfg.Prefix, s) + "!kept:" + escape(id)
}
