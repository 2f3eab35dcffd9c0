package main

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
)

// customers is a database with one table, in the place of a driver's: the plan of each customer.
type customers map[string]string

func (c customers) Connect(context.Context) (driver.Conn, error) { return conn{c}, nil }
func (c customers) Driver() driver.Driver                        { return nil }

type conn struct{ table customers }

var errReadOnly = errors.New("this database answers one question")

func (conn) Prepare(string) (driver.Stmt, error) { return nil, errReadOnly }
func (conn) Begin() (driver.Tx, error)           { return nil, errReadOnly }
func (conn) Close() error                        { return nil }

// QueryContext answers "SELECT plan FROM customers WHERE id = $1".
func (c conn) QueryContext(_ context.Context, _ string, args []driver.NamedValue) (driver.Rows, error) {
	id, _ := args[0].Value.(string)
	if plan, is := c.table[id]; is {
		return &rows{plan}, nil
	}
	return &rows{}, nil
}

// rows are the plans that are still to be read.
type rows []string

func (r *rows) Columns() []string { return []string{"plan"} }
func (r *rows) Close() error      { return nil }

func (r *rows) Next(dest []driver.Value) error {
	if len(*r) == 0 {
		return io.EOF
	}
	dest[0], *r = (*r)[0], (*r)[1:]
	return nil
}
