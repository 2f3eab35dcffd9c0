// Command enqueue makes tasks for the workers: one outbound HTTP request, or a
// file of tasks. It also shows when recurring tasks come due. Run it with -h.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle/policy"
)

func main() {
	cli.RouteRedisLog(nil)
	ctx, stop := cli.Notify(context.Background(), func() { os.Exit(cli.ExitInterrupted) })
	code := run(ctx, os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// command is one run of the program.
type command struct {
	name           string // as messages begin: "enqueue batch"
	getenv         func(string) string
	stdin          io.Reader
	stdout, stderr io.Writer

	typed  *cli.Command   // what was parsed
	policy *policy.Policy // at hand once Redis is open; nil for none
}

// run is the program. It returns its exit code.
func run(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &command{name: "enqueue", getenv: getenv, stdin: stdin, stdout: stdout, stderr: stderr, typed: &cli.Command{}}
	if len(args) == 0 {
		return c.usageError(cli.Errorf("enqueue -h", "no command given: http, batch or schedules"))
	}
	switch args[0] {
	case "http":
		c.name = "enqueue http"
		return c.http(ctx, args[1:])
	case "batch":
		c.name = "enqueue batch"
		return c.batch(ctx, args[1:])
	case "schedules":
		c.name = "enqueue schedules"
		return c.schedules(args[1:])
	case "completion":
		return cli.RunCompletion(newEnqueue(), args[1:], stdout, stderr)
	case "help", "-h", "-help", "--help":
		return c.print(usage)
	case "version", "-version", "--version":
		return c.print("enqueue " + cli.Version() + "\n")
	}
	return c.usageError(cli.Errorf("enqueue -h", "unknown command %q: the commands are http, batch and schedules%s", args[0], cli.DidYouMean(args[0], "", []string{"http", "batch", "schedules"})))
}

// newEnqueue returns the program with all of its commands, for completion.
func newEnqueue() *cli.Command {
	root := cli.NewCommand("enqueue", usage)
	root.Flags.Bool("version", false, "print the version")
	root.Commands = []*cli.Command{
		newHTTPFlags("enqueue http").command, newBatchFlags("enqueue batch").command, newSchedulesFlags("enqueue schedules").command,
		cli.NewCompletion("enqueue"),
	}
	return root
}

func (c *command) print(text string) int {
	if _, err := io.WriteString(c.stdout, text); err != nil {
		return c.fail(fmt.Errorf("cannot write: %w", err))
	}
	return cli.ExitOK
}

func (c *command) usageError(err error) int {
	c.typed.Fail(c.stderr, c.name, err)
	return cli.ExitUsage
}

// fail prints err and returns the exit code that goes with it.
func (c *command) fail(err error) int {
	c.typed.Fail(c.stderr, c.name, err)
	return cli.Code(err)
}

// interrupted says that a signal ended the program, and what to know about it.
func (c *command) interrupted(ctx context.Context, what, try string) int {
	c.typed.Fail(c.stderr, c.name, cli.Errorf(try, "%v%s", context.Cause(ctx), what))
	return cli.ExitInterrupted
}
