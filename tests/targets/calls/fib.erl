%% Nothing but calls: the most that a flag can cost which changes how functions are entered.
-module(fib).
-export([main/1]).

main([Count]) ->
    io:format("~p~n", [lists:sum([fib(25 + I rem 2) || I <- lists:seq(1, list_to_integer(Count))])]),
    halt(0).

fib(N) when N < 2 -> N;
fib(N) -> fib(N - 1) + fib(N - 2).
