package wire

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// attempts sends attempts that stand in no line, alike but for their scopes or under an id of their own, and checks each answer.
func (w *world) attempts(a Attempt, cost string, scopes ...string) error {
	var list, each []Attempt
	setCost(&a, cost)
	w.calls++
	for _, scope := range scopes {
		a.Scope, a.Text = scope, w.text(scope)
		w.say("decide %d× %s %q cost %s ahead %d from %d leeway %d peek %v", a.Many, scope, a.ID, cost, a.Ahead, a.From, a.Leeway, a.Peek)
		list, each = append(list, a), append(each, slices.Repeat([]Attempt{a}, a.Many)...)
	}
	args := DecideArgs(w.clock(), string(seven(make([]byte, 9), w.calls)), "2", list)
	reply, err := w.run("decide", args)
	if err != nil {
		return err
	}
	pooled := func(int) bool { return w.pool != nil }
	_, answers, err := ReadDecide(reply, len(each), pooled, func(i int, member string) int { return len(w.of(each[i].Scope, w.policy).with(member).Rules) })
	if err != nil {
		return wrong("decide answers %q: %v", reply, err)
	}
	for i, answer := range answers {
		id := each[i].ID
		if id == "" {
			id = fmt.Sprintf("%s.%d", args[1], i+1)
		}
		if err := w.answered(each[i], w.of(each[i].Scope, w.policy), cost, id, answer); err != nil {
			return err
		}
	}
	if w.calls%4 > 0 {
		return nil
	}
	again, err := w.run("decide", args) // its reply was lost
	if err != nil || again != reply && a.ID == "" && !a.Peek {
		return wrong("sent again: %q, before %q, %v", again, reply, err)
	}
	return nil
}

// answered checks one answer, and charges it.
func (w *world) answered(a Attempt, all Rules, cost, id string, answer Answer) error {
	w.say("  status %d start %d member %q %v", answer.Status, answer.Start-epoch, answer.Member, answer.Rules)
	its := all.with(answer.Member)
	if answer.Status == Denied { // whoever it is with
		its = all
	}
	soonest, _ := w.joint(a.Scope, its, w.now+a.From, cost, true)
	latest, sure := w.joint(a.Scope, its, w.now+a.From, cost, false)
	switch answer.Status {
	case Allowed:
		if answer.Start < soonest || answer.Start > latest || answer.Start > w.now+a.Ahead {
			return wrong("a start at %d, not from %d to %d", answer.Start-epoch, soonest-epoch, latest-epoch)
		}
		if err := w.chosen(a.Scope, all, answer.Member, w.now+a.From, cost, answer.Start); err != nil || a.Peek {
			return err
		}
		if err := w.take(id, a.Scope, its, cost, answer.Start, a.Leeway); err != nil {
			return err
		}
	case Denied:
		if sure && latest <= w.now+a.Ahead && !w.holds(a.Scope, all, w.now+a.From, cost) {
			return wrong("denied, and a start at %d was possible", latest-epoch)
		}
	case Replayed:
		if a.ID == "" || answer.Start != w.starts[a.ID] {
			return wrong("%+v was not granted before", answer)
		}
		return nil
	default:
		return wrong("an attempt gets %+v", answer)
	}
	if a.ID != "" && answer.Status == Allowed {
		w.starts[a.ID] = answer.Start
	}
	return w.left(a.Scope, all.with(answer.Member), answer)
}

// left checks how many units are left under each rule.
func (w *world) left(scope string, its Rules, answer Answer) error {
	for i, r := range its.Rules {
		k, n := w.counter(r, scope), r.Numbers
		left := max(0, capacity(r.Kind, n)-k.held(n, w.now, w.now))
		if r.Kind == 'T' {
			left = max(0, (n[2]*n[1]-max(0, k.z-(w.now-n[3])*n[0]))/n[1])
		}
		if got := answer.Rules[i].Left; got != left && !k.vague && (r.Kind != 'K' || n[5] == 0) {
			return wrong("%s has %d units left, decide says %d", r.Name, left, got)
		}
	}
	return nil
}

// older has keys grow older by the clock of the scripts: their TTLs shrink by that, and no real time counts. It returns keys
// without a TTL.
const older = `
local without = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left == -1 then without[#without + 1] = key
  elseif left > ARGV[1] + 0 then redis.call('PEXPIRE', key, left - ARGV[1])
  else redis.call('DEL', key) end
end
return without`

// age has a time pass for the keys.
func (w *world) age(us int64) error {
	passed := time.Since(w.aged)
	w.aged = w.aged.Add(passed)
	keys, err := w.rdb.Eval(context.Background(), older, nil, us/1000-passed.Milliseconds()).StringSlice()
	if err != nil {
		return err
	}
	if len(keys) > 0 {
		return wrong("%v have no TTL", keys)
	}
	return nil
}

// correction is another limit of a rule for a time, while the policy gives it the limit of.
type correction struct{ until, limit, of int64 }

// correct gives a rule another limit at a node for a time, and has the node looked at, as report does.
func (w *world) correct(r Rule, node string, c correction) error {
	numbers := slices.Clone(r.Numbers)
	setLimit(r.Kind, numbers, c.limit)
	w.say("correct %s:%s to %d until %d", node, r.Name, c.limit, c.until-epoch)
	own := slices.Clone(r.Numbers)
	c.of = w.limits[w.policy][slices.IndexFunc(w.rules, func(o Rule) bool { return o.Name == r.Name && o.Level == r.Level })]
	setLimit(r.Kind, own, c.of)
	w.corrections[node+":"+r.Name] = c
	ctx := context.Background()
	value := string(seven(append(seven(nil, c.until), r.Kind), append(append(numbers, append(r.Numbers, c.until, 0)...), own...)...))
	if err := w.rdb.HSet(ctx, prefix+"api", "R"+node+":"+r.Name, value).Err(); err != nil {
		return err
	}
	above, _, _ := strings.Cut(node, "/%40")
	due := redis.ZAddArgs{XX: true, Members: []redis.Z{{Member: node}, {Member: above}}}
	return errors.Join(w.rdb.PExpire(ctx, prefix+"api", time.Hour).Err(), w.rdb.ZAddArgs(ctx, prefix+"blocked", due).Err())
}

// report pauses a node, or lifts its pause.
func (w *world) report(word Word) error {
	w.say("report %+v", word)
	if _, err := w.run("report", ReportArgs(w.clock(), []Word{word})); err != nil {
		return err
	}
	if err := w.heardFrom(word.Name); err != nil {
		return err
	}
	clear(w.looked)
	return nil
}
