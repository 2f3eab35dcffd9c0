package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/cmd/internal/schemas"
)

// schemaUsage is what "worker schema -h" prints; testdata/schema.golden holds the same text.
const schemaUsage = `Usage: worker schema limits | schedules

Prints the JSON Schema of limits.yaml or schedules.yaml. An editor uses it to
complete and check the file. A schema cannot express every check: worker limits
check and enqueue schedules report all faults.

Exit codes: 0 done, 1 it could not be written, 2 bad usage.

Example:
  worker schema limits > limits.schema.json
`

func newSchema() *cli.Command {
	c := cli.NewCommand(prog+" schema", schemaUsage)
	c.Mixed, c.About, c.Words = true, "print the JSON Schema of limits.yaml or schedules.yaml", schemas.Names
	return c
}

// runSchema is the program "worker schema".
func runSchema(_ context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	c := newSchema()
	words, code, done := c.Parse(args, getenv, stdout, stderr)
	if done {
		return code
	}
	if len(words) != 1 || !slices.Contains(schemas.Names, words[0]) {
		c.Fail(stderr, c.Name, cli.Errorf("worker schema limits", "name one file: %s", strings.Join(schemas.Names, ", ")))
		return cli.ExitUsage
	}
	if _, err := stdout.Write(schemas.For(words[0])); err != nil {
		c.Fail(stderr, c.Name, fmt.Errorf("cannot write the schema: %w", err))
		return cli.ExitFailed
	}
	return cli.ExitOK
}
