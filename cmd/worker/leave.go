package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/hibiken/asynq"
	"github.com/spf13/cobra"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/worker"
)

const leaveLong = `Returns waiting tasks to the plain form that asynq has without Headway. Their max retry
is then the number of attempts that are left, and their timeout and deadline are asynq's
own. Use it when you remove Headway, or when programs without it are to run the queued
tasks. Stop every worker first. If it is interrupted, run it again.

A task loses the number of its failures and the text of its last error.`

func newLeave() *cobra.Command {
	var s session
	var list string
	c := &cobra.Command{
		Use: "leave", Short: "Return waiting tasks to their plain asynq form", Long: leaveLong, Args: cli.Args(0, 0),
		Example: "  worker leave -redis redis://10.0.0.5:6379/0 -queues default,low",
	}
	c.Flags().StringVar(&list, "queues", "", "the queues to change, `NAME,…`. Default: all queues")
	s.flags(c)
	c.RunE = func(c *cobra.Command, words []string) error {
		var queues []string
		if list != "" {
			queues = strings.Split(list, ",")
		}
		for i, name := range queues {
			if queues[i] = strings.TrimSpace(name); !validQueue(queues[i]) {
				return cli.Usage(cli.Errorf("-queues default,low", "-queues: %q is not a queue name", name))
			}
		}
		return s.online(func(ctx context.Context, _ []string) error { return leave(ctx, &s, queues) })(c, words)
	}
	return c
}

// leave changes the tasks of queues, or of all, unless workers run.
func leave(ctx context.Context, s *session, queues []string) error {
	inspector := asynq.NewInspectorFromRedisClient(s.rdb)
	servers, err := inspector.Servers()
	if err != nil {
		return err
	}
	if len(servers) > 0 {
		return cli.Errorf("stop them, wait ten seconds and run worker leave again",
			"%d workers still serve these queues, the first on host %s, pid %d", len(servers), servers[0].Host, servers[0].PID)
	}
	if queues == nil {
		if queues, err = inspector.Queues(); err != nil {
			return err
		}
	}
	for _, name := range queues {
		changed, err := worker.Detach(ctx, s.rdb, name)
		s.out.Print(struct {
			Queue   string `json:"queue"`
			Changed int    `json:"changed"`
		}{name, changed}, fmt.Sprintf("queue %s: %d tasks are in their plain form", cli.Quote(name), changed))
		if err != nil {
			return err
		}
	}
	return nil
}
