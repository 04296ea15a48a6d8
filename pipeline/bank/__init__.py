"""Reference banks: the rows that nearest-neighbour scorers compare with, and the search in them."""

from pipeline.bank.building import BANK_LIMIT_NBYTES as BANK_LIMIT_NBYTES
from pipeline.bank.building import check_max_bank as check_max_bank
from pipeline.bank.building import reference_bank as reference_bank
from pipeline.bank.building import reference_coreset as reference_coreset
from pipeline.bank.building import too_few as too_few
from pipeline.bank.groups import group_nbytes as group_nbytes
from pipeline.bank.groups import group_rows as group_rows
from pipeline.bank.groups import held as held
from pipeline.bank.groups import searches as searches
from pipeline.bank.groups import streamed as streamed
from pipeline.bank.groups import waiting as waiting
from pipeline.bank.rows import Bank as Bank
from pipeline.bank.rows import BankFile as BankFile
from pipeline.bank.search import Nearest as Nearest
from pipeline.bank.search import largest as largest
from pipeline.bank.search import nearest_rows as nearest_rows
from pipeline.bank.search import search_nbytes as search_nbytes
