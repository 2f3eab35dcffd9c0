package lua

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// path is some rules that an attempt meets.
type path struct {
	keys  []string
	rules []string
	scope string // after the provider's name
}

// asking is one attempt of a batch; without a record it is known with its batch alone.
type asking struct {
	path
	record, id string
	cost       int
	ticket     string
}

// alone makes the call of decide for an attempt.
func (a asking) alone(now, ahead int) (keys []string, args []any) {
	if a.record == "" {
		a.record, _, _ = strings.Cut(a.keys[0], ":")
		a.record += "@alone"
	}
	args = []any{now, a.id, fmt.Sprint(ahead, a.scope)}
	for _, r := range a.rules {
		args = append(args, r, a.cost)
	}
	return append(slices.Clone(a.keys), a.record, upstreamOf(a.record)), args
}

// upstreamOf is the key of what is told where a key stands.
func upstreamOf(key string) string {
	provider, _, _ := strings.Cut(key, "@")
	return provider + "!upstream"
}

// together makes the call of decide_many for attempts, as a batch with an id and a
// record.
func together(now int, id, record string, all []asking) (keys []string, args []any) {
	var calls []byte
	two := func(n int) { calls = append(calls, byte(n>>8), byte(n)) }
	key := func(k string) {
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
		two(slices.Index(keys, k) + 1)
	}
	provider := strings.TrimSuffix(upstreamOf(record), "!upstream")
	keys, args = []string{record, provider + "!upstream", provider + "!meta", provider + "!flight", provider + "!parked"}, []any{now, id, nil}
	text := func(s string) {
		if !slices.Contains(args, any(s)) {
			args = append(args, s)
		}
		two(slices.Index(args, any(s)) + 1)
	}
	for _, a := range all {
		calls = append(calls, byte(len(a.keys)), byte(len(a.id)))
		two(len(a.scope))
		two(len(a.ticket))
		text(strconv.Itoa(a.cost))
		if a.record != "" {
			key(a.record)
		} else {
			two(0)
		}
		for i := range a.keys {
			key(a.keys[i])
			text(a.rules[i])
		}
		calls = append(calls, a.id+a.scope+a.ticket...)
	}
	if len(all) > 0 {
		tickets := byte(0)
		if slices.ContainsFunc(all, func(a asking) bool { return a.ticket != "" }) {
			tickets = 1
		}
		calls = append([]byte{0, tickets}, calls...)
	}
	args[2] = calls
	return keys, args
}

// split takes the reply of decide_many apart: the start and the places of each
// attempt, nil for who is left to decide.
func split(t *testing.T, reply string, all []asking) (out [][]int64) {
	t.Helper()
	take := func() (n int64) {
		if len(reply) < 7 {
			t.Fatalf("the reply ends at attempt %d", len(out))
		}
		for i := range 7 {
			n = n<<8 | int64(reply[i])
		}
		reply = reply[7:]
		return n
	}
	now, start := take(), take()
	if now != start {
		t.Errorf("at %d it is decided for %d", now, start)
	}
	for _, a := range all {
		if len(reply) == 0 {
			t.Fatalf("the reply ends at attempt %d", len(out))
		}
		admitted := reply[0] == 1
		reply = reply[1:]
		if !admitted {
			out = append(out, nil)
			continue
		}
		one := []int64{start}
		for _, rule := range a.rules {
			if place := take(); rule[0] != 'C' {
				one = append(one, place)
			} else {
				one = append(one, 0) // and when the last lease ends
			}
			take()
		}
		out = append(out, one)
	}
	if len(reply) > 0 {
		t.Fatalf("%d bytes more than attempts", len(reply))
	}
	return out
}
