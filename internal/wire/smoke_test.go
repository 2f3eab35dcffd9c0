package wire

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
)

func TestSmoke(t *testing.T) {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:7391", Protocol: 2})
	rdb.FlushAll(ctx)
	text := Rules{Version: 1, Policy: 1, Shape: 1, Until: Never, Weights: []float64{1}, Rules: []Rule{
		{Kind: 'S', Level: 0, Name: "acct", Numbers: []int64{20, 1000000, 1, 0}},
		{Kind: 'T', Level: 1, Name: "ten", Numbers: []int64{1, 200000, 3, 0}},
	}}.Text()
	now := int64(1700000000000000)
	clock := func() string { return fmt.Sprint(now) }
	reply, err := Run(ctx, rdb, lua.Next("decide"), "hw:{p}:", DecideArgs(clock(), "0123456789abcdef", "1", []Attempt{{Scope: "/a", Text: text, Many: 5, Cost: 1}})...)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(ReadDecide(reply, 5, func(int) int { return 2 }))
	var tasks []Task
	for i := range 30 {
		tasks = append(tasks, Task{Scope: []string{"/a", "/b"}[i/15], Text: text, Queue: "q", ID: fmt.Sprint(i), Cost: "1"})
	}
	reply, err = Run(ctx, rdb, lua.Next("join"), "hw:{p}:", JoinArgs(clock(), tasks)...)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(ReadJoin(reply))
	for range 10 {
		reply, err = Run(ctx, rdb, lua.Next("dispatch"), "hw:{p}:", Dispatch{Lead: 20000, Spread: 80000, Most: 50, Version: 1, Policy: 1, Serves: []Weighted{{"q", 1}}}.Args(clock())...)
		if err != nil {
			t.Fatal(err)
		}
		d, err := ReadDispatch(reply)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(d.Now-1700000000000000, d.Next-1700000000000000, len(d.Granted), d.Stale, d.Refused, len(d.Overdue))
		for _, g := range d.Granted {
			fmt.Println("   ", g.Waiter, g.Scope, g.Start-1700000000000000, g.Places)
		}
		now = d.Next
	}
}
