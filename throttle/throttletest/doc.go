// Package throttletest is for the tests of programs that use package throttle.
//
// [Limiter] is a stand-in with scripted answers: it decides nothing, does what
// it is told and remembers what it was asked. Take it to test what a program
// does when it is limited, when it has to wait and when Redis is gone.
//
// [New] is a real limiter over a Redis in memory, without a network, that works
// in bubbles of testing/synctest: there an hour of limits takes no time,
// durations are exact, and to wait is to move the clock. Take it to test that
// limits are as they should be. [NewWithRedis] returns that Redis too, to take it
// down ([Redis.Close]), to move its clock where there is no bubble
// ([Redis.Advance]) or to set that to a date ([Redis.SetTime]).
package throttletest
