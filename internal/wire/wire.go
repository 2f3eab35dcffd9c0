// Package wire is the format of what Headway's scripts take and return: keys, texts of rules, arguments and replies. It decides
// nothing. See package lua for the scripts.
package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
)

// Never is a moment or a wait that no clock reaches, as scripts have it: 2^53 - 1.
const Never = 1<<53 - 1

// Forever is a wait that no clock ends.
const Forever = time.Duration(math.MaxInt64)

// Wait returns a wait in µs as scripts have it.
func Wait(n int64) time.Duration {
	if n < 0 || n >= Never {
		return Forever
	}
	return time.Duration(n) * time.Microsecond
}

// Until returns the time from now until a moment in µs of the same clock; 0 if that has passed.
func Until(moment int64, now time.Time) time.Duration {
	if moment == Never {
		return Forever
	}
	return Wait(max(0, moment-now.UnixMicro()))
}

// ErrReply is a reply that no script of this version gives: another version may have written the keys, or they are damaged.
var ErrReply = errors.New("a script's reply cannot be read")

// seven appends whole numbers from 0 to Never, seven bytes each.
func seven(b []byte, numbers ...int64) []byte {
	for _, n := range numbers {
		b = append(b, byte(n>>48), byte(n>>40), byte(n>>32), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	return b
}

// reader reads numbers of seven bytes and bytes. After the end it reads zeros, and short is true.
type reader struct {
	text  string
	short bool
}

func (r *reader) byte() byte {
	if r.text == "" {
		r.short = true
		return 0
	}
	b := r.text[0]
	r.text = r.text[1:]
	return b
}

func (r *reader) take(n int) (text string) {
	r.short = r.short || len(r.text) < n
	n = min(n, len(r.text))
	text, r.text = r.text[:n], r.text[n:]
	return text
}

func (r *reader) number() int64 {
	if len(r.text) < 7 {
		r.text, r.short = "", true
		return 0
	}
	var b [8]byte
	copy(b[1:], r.text)
	r.text = r.text[7:]
	return int64(binary.BigEndian.Uint64(b[:])) //nolint:gosec // 56 bits
}

// Call runs a script under a time-out, as Run and Send do.
func Call(ctx context.Context, rdb redis.UniversalClient, timeout time.Duration, script *lua.Script, prefix string, args ...any) (reply any, err error) {
	err = Send(ctx, rdb, timeout, func(ctx context.Context) (err error) {
		reply, err = Run(ctx, rdb, script, prefix, args...)
		return err
	})
	return reply, err
}

// Run runs a script, and sends its text if the server does not know it. It costs one round trip, and one more for the first call
// of a script.
func Run(ctx context.Context, rdb redis.UniversalClient, script *lua.Script, prefix string, args ...any) (any, error) {
	return RunKeys(ctx, rdb, script, keys(prefix), args...)
}

// keys returns the KEYS of a script: the prefix of all keys that the script uses, and a key that does not exist and that no script
// reads. While a cluster moves a slot, the old server forwards calls whose keys it lacks, and the new server refuses a call (TRYAGAIN)
// only if the call has several keys. With the prefix alone, the new server would decide without the keys that have not arrived.
func keys(prefix string) []string { return []string{prefix, prefix + "moving"} }

// RunKeys is Run for a script that is given keys instead of a prefix.
func RunKeys(ctx context.Context, rdb redis.UniversalClient, script *lua.Script, keys []string, args ...any) (any, error) {
	reply, err := rdb.EvalSha(ctx, script.SHA(), keys, args...).Result()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		reply, err = rdb.Eval(ctx, script.Source(), keys, args...).Result()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", script.Name, err)
	}
	return reply, nil
}

// RunAll runs a script once for each list of arguments, in one round trip, and returns the replies. It costs one round trip more
// on a server that does not know the script. The error is that of the first call that failed; the others may have been done.
func RunAll(ctx context.Context, rdb redis.UniversalClient, script *lua.Script, prefix string, calls [][]any) ([]any, error) {
	replies := make([]any, len(calls))
	if len(calls) == 1 {
		reply, err := Run(ctx, rdb, script, prefix, calls[0]...)
		replies[0] = reply
		return replies, err
	}
	cmds := make([]*redis.Cmd, len(calls))
	send := func(eval func(redis.Pipeliner, context.Context, string, []string, ...any) *redis.Cmd, text string) error {
		_, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i, args := range calls {
				cmds[i] = eval(pipe, ctx, text, keys(prefix), args...)
			}
			return nil
		})
		return err
	}
	err := send(redis.Pipeliner.EvalSha, script.SHA())
	if redis.HasErrorPrefix(err, "NOSCRIPT") { // the server has run none of them
		err = send(redis.Pipeliner.Eval, script.Source())
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", script.Name, err)
	}
	for i, cmd := range cmds {
		replies[i] = cmd.Val()
	}
	return replies, nil
}

// Attempt asks for units.
type Attempt struct {
	Scope  string
	Text   string // of its rules
	Many   int    // how many such attempts
	Peek   bool
	ID     string // its own, or ""
	Waiter string // "queue:id" of a task, or ""
	Ahead  int64
	From   int64
	Leeway int64
	Cost   int64
	Costs  string // by unit, instead of Cost
	Missed string // GrantText of a task that came too late for it, instead of its cost
}

// State is what one rule says after a decision.
type State struct{ Place, Left, Retry, Reset int64 }

// The statuses of an answer.
const (
	Denied   = 0
	Allowed  = 1
	Replayed = 2
	MustJoin = 3
	Outdated = 4
	Claimed  = 5
	MustBack = 6 // it had a grant, and is to join at its place
)

// Answer is the decision on one attempt.
type Answer struct {
	Status  byte
	Probe   bool
	Member  string // the key of a pool's member, "" for none
	Binding int
	Start   int64
	Rules   []State
}

// DecideArgs returns the arguments of decide. Scopes that ask for the same, one after the other, share what they ask for.
func DecideArgs(clock, call, record string, attempts []Attempt) []any {
	texts, number := []any{}, map[string]byte{}
	for _, a := range attempts {
		if number[a.Text] == 0 {
			texts = append(texts, a.Text)
			number[a.Text] = byte(len(texts))
		}
	}
	args := append([]any{clock, call, record, len(texts)}, texts...)
	for i := 0; i < len(attempts); {
		first, alike := attempts[i], 1
		for i+alike < len(attempts) && first.isLike(attempts[i+alike]) {
			alike++
		}
		flags, costs, id := first.asks()
		ask := seven([]byte{flags, number[first.Text]}, int64(alike), int64(max(first.Many, 1)), first.Ahead, first.From, first.Leeway, first.Cost)
		args = append(args, string(ask), costs, id)
		for range alike {
			args = append(args, attempts[i].Scope)
			i++
		}
	}
	return args
}

// isLike reports whether two attempts differ by their scopes alone, and neither by an id.
func (a Attempt) isLike(b Attempt) bool {
	b.Scope = a.Scope
	return a == b && a.ID == "" && a.Waiter == ""
}

// asks returns the flags of an attempt, its costs by unit and its id.
func (a Attempt) asks() (flags byte, costs, id string) {
	costs, id = a.Costs, a.ID
	if a.Peek {
		flags++
	}
	if a.ID != "" {
		flags += 2
	}
	if a.Waiter != "" {
		flags, id = flags+4, a.Waiter
	}
	if a.Missed != "" {
		flags, costs = flags+8, a.Missed
	}
	return flags, costs, id
}

// ReadDecide reads the reply of decide: the server's clock, and an answer for each attempt, in their order. pooled says whether the scope
// of an attempt has a pool, nil if none has; rules how many rules the answer has, of which a member of a pool has some.
func ReadDecide(reply any, attempts int, pooled func(i int) bool, rules func(i int, member string) int) (now int64, answers []Answer, err error) {
	text, _ := reply.(string)
	r := reader{text: text}
	now = r.number()
	for i := range attempts {
		a := Answer{Status: r.byte()}
		a.Status, a.Probe = a.Status%16, a.Status >= 16
		if a.Status != Outdated {
			if pooled != nil && pooled(i) {
				a.Member = r.take(int(r.byte())<<8 + int(r.byte()))
			}
			a.Binding, a.Start = int(r.byte()), r.number()
			for range rules(i, a.Member) {
				a.Rules = append(a.Rules, State{r.number(), r.number(), r.number(), r.number()})
			}
		}
		answers = append(answers, a)
	}
	if r.short || r.text != "" {
		return 0, nil, ErrReply
	}
	return now, answers, nil
}

func texts(list any) (out []string) {
	all, _ := list.([]any)
	for _, v := range all {
		text, _ := v.(string)
		out = append(out, text)
	}
	return out
}
